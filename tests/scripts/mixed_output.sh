#!/bin/bash
#SBATCH --job-name=mixed
#SBATCH --output=out/%x-%j.txt
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=1
#SBATCH --time=5

echo "out 1"; echo "err 1" >&2
echo "out 2"; echo "err 2" >&2
srun -n1 bash -c 'echo "step out"; echo "step err" >&2'
echo "out 3" >> /dev/stdout
logger_() { echo "$(printf '%(%Y)T' -1 | wc -c) characters"; }; logger_
