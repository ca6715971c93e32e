"""What interrupted submissions and ended Slurm jobs have left."""
