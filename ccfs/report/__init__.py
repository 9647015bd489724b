"""A run as a page for people. `page` writes it. The gallery uses the same charts and templates."""
