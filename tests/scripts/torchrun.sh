#!/bin/bash
#SBATCH --job-name=torchrun
#SBATCH --cpus-per-task=2
#SBATCH --time=10

export OMP_NUM_THREADS=1
torchrun --standalone --nproc-per-node=2 ddp_train.py
echo "torchrun ended with $?"
