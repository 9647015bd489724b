"""Adapters that turn a trained policy into a proposal center, and the trained zoo."""
