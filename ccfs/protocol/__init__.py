"""The protocol file: its tables, seeds, short names and errors."""
