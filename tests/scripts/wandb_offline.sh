#!/bin/bash
#SBATCH --job-name=wandb
#SBATCH --cpus-per-task=1
#SBATCH --time=10

export WANDB_MODE=offline WANDB_SILENT=true
python wandb_train.py
