"""Check a run again: hashes, numbers and replays."""
