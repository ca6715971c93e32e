#!/bin/bash
#SBATCH --job-name=md
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=5

# gmx_mpi mdrun in small: one rank with threads, started by srun through PMI-2.
srun --mpi=pmi2 ./md -deffnm prod -nsteps 40 -ntomp "$SLURM_CPUS_PER_TASK"
echo "md ended with $?"
tail -n 1 prod.log
