"""The figures of one pack, from samples and records to summary.json; nothing is printed."""
