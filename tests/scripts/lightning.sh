#!/bin/bash
#SBATCH --job-name=lightning
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=SIGUSR1@90
#SBATCH --time=00:10:00

# As Lightning's documentation writes it: its Slurm plugin finds the job by itself.
export PYTHONFAULTHANDLER=1
srun python lightning_train.py --max-epochs 2
