#!/bin/bash
#SBATCH --job-name=checkpoint
#SBATCH --cpus-per-task=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --time=10

# The checkpoint idiom: save, put the job back into the queue, go on from there.
epoch=$(cat checkpoint.txt 2>/dev/null || echo 0)
echo "start at epoch $epoch, restart ${SLURM_RESTART_COUNT:-0}"
requeue() {
    echo "$epoch" > checkpoint.txt
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
}
trap requeue USR1
while [ "$epoch" -lt 3 ]; do
    sleep 0.1
    epoch=$((epoch + 1))
    echo "epoch $epoch"
    [ "$epoch" = 2 ] && kill -USR1 $$
done
echo "done"
