#!/bin/bash
#SBATCH --job-name=md-mpirun
#SBATCH --cpus-per-task=2
#SBATCH --time=5

# mpirun starts its proxy with srun, as it sees a Slurm job.
mpirun -n 2 ./md -deffnm prod -nsteps 40 -ntomp 1
echo "md ended with $?"
mpirun -n 2 ./md -deffnm missing/prod -nsteps 1 -ntomp 1 2>/dev/null
echo "a run that fails ends with $?"
