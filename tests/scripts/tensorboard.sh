#!/bin/bash
#SBATCH --job-name=loader
#SBATCH --cpus-per-task=2
#SBATCH --time=10

# DataLoader workers, shared memory between them, and event files.
python loader_train.py --workers 2 --logdir runs
