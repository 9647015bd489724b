"""Policies of other libraries as controllers."""
