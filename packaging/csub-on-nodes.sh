#!/bin/sh
# bin/csub of the nodes' own installation: it has csub's commands for administrators alone. What
# users call needs more than the standard library, and is installed where they log in.
if [ "${1-}" != admin ] && [ "${1-}" != --version ]; then
    echo "csub: error: this is a node's own installation, which has csub admin alone" >&2
    exit 2
fi
# It may be called through a link.
here=$(readlink -f "$0") || exit 1
exec "${here%/*}/python" -I -B -m slurm_colloc "$@"
