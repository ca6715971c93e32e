#!/bin/bash
#SBATCH --job-name=fails
#SBATCH --cpus-per-task=1
#SBATCH --time=5
echo "before"
bash -c 'exit 37'
exit $?
