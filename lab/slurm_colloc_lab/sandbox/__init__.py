"""A private Slurm cluster on one machine, for trials and tests."""
