#!/bin/bash
#SBATCH --job-name=runs
#SBATCH --cpus-per-task=1
#SBATCH --time=5

# A directory for each run, named as people name them.
run=runs/$SLURM_JOB_ID
mkdir -p "$run"
log=logs/train_$(date +%Y%m%d_%H%M%S).log
mkdir -p logs
echo "loss 0.1" > "$log"
echo "weights" > "$run/model.txt"
ls runs | wc -l
