"""Attacks: shift rules, the ledger that limits their energy, and learned rules."""
