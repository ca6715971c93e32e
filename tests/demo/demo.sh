#!/bin/sh
# The main job, shown: four real trainings share one GPU inside one Slurm job.
# With Slurm: a private cluster of two nodes with two GPUs each, made for the demo and ended after
# it. Without Slurm: the same as plain processes (csub --local).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
PATH=$here/../../.venv/bin:$PATH
DEMO_PYTHON=$(command -v python)
DEMO_TRAIN=$here/train.py
export PATH DEMO_PYTHON DEMO_TRAIN

# What is left of the demo: the page that a group meeting would want.
page=${CSUB_DEMO_PAGE:-$(dirname "$(dirname "$here")")/build/csub-demo.html}
work=$(mktemp -d /var/tmp/csub-demo.XXXXXX)
XDG_STATE_HOME=$work/state
export XDG_STATE_HOME
local_option=
use_slurm=no

finish() {
    status=$?
    trap - EXIT INT TERM
    if [ "$use_slurm" = yes ]; then
        # The last lines are the report's.
        csub sandbox down --dir "$work/cluster" --purge >/dev/null || true
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

show() {
    printf '\n$'
    for word in "$@"; do
        case $word in
            *' '*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}

# slurmctld is often in /usr/sbin, which is not on everybody's PATH.
if PATH=$PATH:/usr/sbin:/sbin command -v slurmctld >/dev/null 2>&1; then
    use_slurm=yes
    show csub sandbox up --dir "$work/cluster" --nodes 2 --gpus-per-node 2
    eval "$(csub sandbox env --dir "$work/cluster")"
else
    echo "There is no Slurm here: the trainings run as plain processes (csub --local)."
    local_option=--local
fi

cp "$here/train.sh" "$work/train.sh"
cd "$work"

if [ "$use_slurm" = yes ]; then
    # How fast it is alone, for which it must run longer than below; the four are its family.
    show env DEMO_SECONDS=300 csub probe --wait train.sh --lr 0.1
fi

# shellcheck disable=SC2086 # an empty option is no option
answer=$(show csub pack $local_option 'train.sh --lr 0.01' 'train.sh --lr 0.1' \
    'train.sh --lr 0.5' 'train.sh --lr 1e30')
echo "$answer"
job=$(printf '%s\n' "$answer" | sed -n 's/^Submitted batch job \([L0-9]*\).*/\1/p')

# Wait for the last member to start, so that the queue shows all four.
tries=0
until [ "$(csub queue | grep -c RUNNING)" -ge 3 ] || [ "$tries" -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
show csub queue
if [ "$use_slurm" = yes ]; then
    show squeue
fi
sleep 4
show csub queue
show csub logs -f "$job/2"
printf '\n$ csub wait %s; echo $?\n' "$job"
status=0
csub wait "$job" || status=$?
echo "$status"
show csub show "$job"
show csub logs "$job"
show csub report "$job"

[ "$status" -eq 3 ] || {
    echo "The demo went wrong: the worst exit status should be 3, it is $status." >&2
    exit 1
}
echo
echo "Four trainings, one Slurm job; the one whose loss became infinite ended with 3, as it should."
mkdir -p "$(dirname "$page")"
show csub report "$job" --html "$page"
