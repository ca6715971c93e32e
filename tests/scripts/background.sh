#!/bin/bash
#SBATCH --job-name=background
#SBATCH --cpus-per-task=2
#SBATCH --time=5

worker() { sleep "0.$1"; echo "worker $1" > "worker.$1"; return "$1"; }
pids=()
for n in 1 2 3; do
    worker "$n" &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid"
    echo "ended with $?"
done
sleep 0.1 & wait -n; echo "first: $?"
(sleep 0.1; exit 6) & wait $!; echo "group: $?"
# Left running: Slurm ends it with the script.
(sleep 600; touch too-late) &
disown
nohup sleep 600 > nohup.log 2>&1 &
sleep 0.3
exit 3
