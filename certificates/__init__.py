"""Theorems as pure functions: counts and probabilities in, bounds and radii out, rounded to the safe side."""
