"""Values of sbatch's options as Slurm writes them: parsing, and writing back."""
