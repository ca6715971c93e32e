"""The monitor beside the members, and what the runner reads of it."""
