"""Small environments whose exact answers are known."""
