#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --cpus-per-task=1
#SBATCH --time=10

# One run into the default outputs/DATE/TIME, and a sweep into multirun/DATE/TIME.
python hydra_app.py optimizer.lr=0.3
python hydra_app.py --multirun optimizer.lr=0.1,0.2
