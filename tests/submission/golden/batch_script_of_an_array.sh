#!/bin/bash
# train: 4 members
# Written by csub 1.2.3. The members run as steps of this job.
pack=/state/packs/s
pack="$pack.$SLURM_ARRAY_TASK_ID"
if [ ! -x /usr/bin/python3 ]; then
    echo "csub: error: there is no Python at "/usr/bin/python3" on $HOSTNAME: set node_python in the settings to one that the nodes have" >&2
    exit 5
fi
if [ ! -e "$pack/pack.json" ]; then
    echo "csub: error: $pack is not on $HOSTNAME: set state_dir in the settings to a path that login and compute nodes share" >&2
    exit 6
fi
exec /usr/bin/python3 -IB -m slurm_colloc.runtime "$pack"
