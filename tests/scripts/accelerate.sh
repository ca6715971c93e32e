#!/bin/bash
#SBATCH --job-name=accelerate
#SBATCH --cpus-per-task=1
#SBATCH --time=10
set -e

export ACCELERATE_LOG_LEVEL=error
accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no \
    --dynamo_backend no accelerate_train.py --steps 3
