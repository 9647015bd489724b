"""A run as a page for people. `page` writes it; the charts and templates serve the gallery too."""
