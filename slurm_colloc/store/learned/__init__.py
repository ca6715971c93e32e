"""What earlier runs and Slurm's accounting have taught, kept for later plans."""
