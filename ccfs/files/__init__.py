"""Reading, writing and hashing files: each is written whole or not at all, by one process at a time."""
