"""From a protocol to a run folder: build, check, roll out, record, count."""
