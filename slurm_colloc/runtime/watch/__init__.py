"""The monitor alongside the members, and what the runner reads of it."""
