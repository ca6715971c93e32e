"""From a plan to Slurm: packs to write, sbatch's options, the batch script, and submitting it."""
