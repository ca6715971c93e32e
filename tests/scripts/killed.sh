#!/bin/bash
#SBATCH --job-name=killed
#SBATCH --cpus-per-task=1
#SBATCH --time=5
echo "partial result" > result.txt
echo "about to die"
kill -KILL $$
echo "never"
