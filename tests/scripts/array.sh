#!/bin/bash
#SBATCH --job-name=grid
#SBATCH --array=0-3
#SBATCH --cpus-per-task=1
#SBATCH --output=logs/%x_%A_%a.out
#SBATCH --error=logs/%x_%A_%a.err
#SBATCH --time=5

rates=(0.1 0.03 0.01 0.003)
rate=${rates[$SLURM_ARRAY_TASK_ID]}
line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" parameters.txt)
mkdir -p "runs/task_$SLURM_ARRAY_TASK_ID"
echo "rate $rate, $line" > "runs/task_$SLURM_ARRAY_TASK_ID/result.txt"
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT ($SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX)"
echo "task $SLURM_ARRAY_TASK_ID warns" >&2
exit "$SLURM_ARRAY_TASK_ID"
