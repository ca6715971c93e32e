#!/bin/sh
# Run by slurmd as root on a node, after a job has ended there: Epilog= in slurm.conf.
#
# What the prolog did stands in a checkpoint that only root can write; a job without one costs this
# file and nothing else. The comment decides nothing here, for its user may have changed it.

# Constants of this installation, one a line; `csub admin install-hooks` writes them.
prefix=/opt/slurm_colloc
run=/run/slurm_colloc
policy=/etc/slurm_colloc/node.toml
driver=

LC_ALL=C
job=${SLURM_JOB_ID-}
case $job in '' | *[!0123456789]*) exit 0 ;; esac
[ ${#job} -le 10 ] || exit 0
[ -e "$run/jobs/$job.json" ] || exit 0

if ! [ -x "$prefix/bin/python" ]; then
    # Something was done for this job and no one can undo it: the node must not take another.
    echo "slurm_colloc: $run/jobs/$job.json waits for $prefix/bin/python, which is missing" >&2
    exit 1
fi

exec </dev/null 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
# The tree that is there now, whatever a link leads to later: an upgrade exchanges it.
cd -P "$prefix" && prefix=$PWD
cd /
umask 077
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
    "SLURM_JOB_ID=$job" \
    ${SLURM_JOB_COMMENT+"SLURM_JOB_COMMENT=$SLURM_JOB_COMMENT"} \
    ${SLURM_JOB_UID+"SLURM_JOB_UID=$SLURM_JOB_UID"} \
    ${SLURM_JOB_GID+"SLURM_JOB_GID=$SLURM_JOB_GID"} \
    ${SLURM_JOB_USER+"SLURM_JOB_USER=$SLURM_JOB_USER"} \
    ${SLURM_JOB_PARTITION+"SLURM_JOB_PARTITION=$SLURM_JOB_PARTITION"} \
    ${SLURM_JOB_ACCOUNT+"SLURM_JOB_ACCOUNT=$SLURM_JOB_ACCOUNT"} \
    ${SLURM_JOB_GPUS+"SLURM_JOB_GPUS=$SLURM_JOB_GPUS"} \
    ${SLURM_JOB_CPUS_PER_NODE+"SLURM_JOB_CPUS_PER_NODE=$SLURM_JOB_CPUS_PER_NODE"} \
    ${SLURM_JOB_SLUID+"SLURM_JOB_SLUID=$SLURM_JOB_SLUID"} \
    ${CUDA_VISIBLE_DEVICES+"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"} \
    ${SLURMD_NODENAME+"SLURMD_NODENAME=$SLURMD_NODENAME"} \
    ${SLURM_CLUSTER_NAME+"SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME"} \
    ${SLURM_JOB_RESTART_COUNT+"SLURM_JOB_RESTART_COUNT=$SLURM_JOB_RESTART_COUNT"} \
    ${driver:+"SLURM_COLLOC_DRIVER=$driver"} \
    "$prefix/bin/python" -I -B -m slurm_colloc.host.lifecycle epilog \
    --run-directory "$run" --policy "$policy"
