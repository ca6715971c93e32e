#!/bin/bash
#SBATCH --job-name=steps
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=200M
#SBATCH --time=5
# srun in every form that people write inside a batch script.

echo "start in $(basename "$PWD")"
srun echo bare
srun -n1 echo "one task"
srun --ntasks=1 --cpus-per-task=1 --cpu-bind=none --mem=50M --job-name=inner \
    bash -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS, name $SLURM_JOB_NAME"'
srun -n1 --output=step.out bash -c 'echo "to a file"; echo "and the error" >&2'
srun -n1 --chdir=/ pwd
srun -n1 bash -c 'exit 9'
echo "status $?"
srun --label -n1 printf 'labelled\n'
printf 'a\nb\n' | srun -n1 cat -n
first=$(srun -n1 hostname)
[ "$first" = "$(hostname)" ] && echo "same host"
srun --exact -n1 -c1 --mem=50M sleep 0.2 &
srun --exact -n1 -c1 --mem=50M echo "next to it"
wait
echo "end"
