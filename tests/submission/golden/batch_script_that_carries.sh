#!/bin/bash
# train: 4 members
# Written by csub 1.2.3. The members run as steps of this job.
# The pack itself: login and compute nodes share no path.
umask 077
for carried in "${TMPDIR:-/tmp}"/csub-pack.*; do
    # Left by a pack that was killed: no process holds its lock any more.
    if [ -O "$carried" ] && [ ! -L "$carried" ] && [ -f "$carried/lock" ] && flock -n "$carried/lock" true; then
        rm -rf -- "$carried"
    fi
done
carried=$(mktemp -d "${TMPDIR:-/tmp}/csub-pack.XXXXXX") || exit 6
# Until the runner takes over, which removes it itself.
trap 'rm -rf -- "$carried"' EXIT
exec 9>"$carried/lock.new"
if flock -n 9; then
    mv "$carried/lock.new" "$carried/lock"
fi
base64 -d <<'CSUB_ARCHIVE' | tar -xzf - -C "$carried" || exit 6
QUJD
REVG
CSUB_ARCHIVE
# The members' environments: they are in no script that Slurm keeps.
for name in "${!SLURM_COLLOC_CARRIED_@}"; do
    printf '%s' "${!name}"
done | base64 -d | tar -xzf - -C "$carried" || exit 6
unset "${!SLURM_COLLOC_CARRIED_@}"
pack=$carried/packs/s
pack="$pack.0"
if [ ! -x /usr/bin/python3 ]; then
    echo "csub: error: there is no Python at "/usr/bin/python3" on $HOSTNAME: set node_python in the settings to one that the nodes have" >&2
    exit 5
fi
if [ ! -e "$pack/pack.json" ]; then
    echo "csub: error: $pack is not on $HOSTNAME: set state_dir in the settings to a path that login and compute nodes share" >&2
    exit 6
fi
exec /usr/bin/python3 -IB -m slurm_colloc.runtime "$pack"
