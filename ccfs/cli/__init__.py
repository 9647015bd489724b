"""The `ccfs` command."""
