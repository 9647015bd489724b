"""What runs at every step of a trial."""
