#!/bin/bash
#SBATCH --job-name=crash
#SBATCH --cpus-per-task=1
#SBATCH --time=5
ulimit -c 0
bash -c 'kill -SEGV $$'
echo "the shell says $?"
python3 -c 'import os; os.abort()'
