#!/bin/bash
#SBATCH --job-name=traps
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@30
#SBATCH --time=10

save() {
    echo "saving at $1"
    echo "epoch $epoch" > checkpoint.txt
}
cleanup() {
    status=$?
    echo "cleaning up after $status"
    rm -f work.tmp
    exit $((status + 1))
}
trap 'save USR1' USR1
trap 'save TERM; exit 40' TERM
trap cleanup EXIT

touch work.tmp
for epoch in 1 2 3; do
    sleep 0.1 &
    wait $!
    [ "$epoch" = 2 ] && kill -USR1 $$
done
trap -p USR1 | sed 's/SIG//'
(sleep 0.2; kill -TERM $$) &
while :; do
    sleep 5 &
    pid=$!
    wait "$pid" || { kill "$pid" 2>/dev/null; continue; }
done
