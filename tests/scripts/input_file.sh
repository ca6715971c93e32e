#!/bin/bash
#SBATCH --job-name=input
#SBATCH --cpus-per-task=1
#SBATCH --input=parameters.txt
#SBATCH --time=5

read -r first
echo "first: $first"
python3 -c 'import sys; print(sum(1 for _ in sys.stdin), "more")'
