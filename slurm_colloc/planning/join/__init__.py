"""Whether one more job fits into a pack that exists; new packs are search."""
