"""Environments: exact and fast Safety-Gymnasium, small environments with known truth, and their verifiers."""
