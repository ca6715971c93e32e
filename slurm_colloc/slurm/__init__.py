"""Slurm through its own commands: the only place that knows how they are called and read."""
