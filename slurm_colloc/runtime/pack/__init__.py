"""The pack as a whole: its runner's parent, what Slurm decides about it, and its end."""
