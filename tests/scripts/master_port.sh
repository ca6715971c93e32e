#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --cpus-per-task=1
#SBATCH --time=10

# The usual recipe: an address, a port where none is set, and the ranks from Slurm.
export MASTER_ADDR=127.0.0.1
export MASTER_PORT=${MASTER_PORT:-$((20000 + RANDOM % 10000))}
export WORLD_SIZE=1 RANK=0 LOCAL_RANK=0
python ddp_train.py
