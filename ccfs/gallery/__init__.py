"""Retained sets as drawings, and the paper's exact witnesses as text: where conditioning is safe and where not."""
