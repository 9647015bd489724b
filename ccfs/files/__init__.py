"""Files as everybody here reads and writes them: whole or not at all, by one writer at a time."""
