"""Whether an open pack takes a job, and putting it there."""
