#!/bin/sh
#SBATCH --job-name=posix
#SBATCH --cpus-per-task=1
#SBATCH --time=5
set -eu

: "${LR:=0.5}"
echo "rate $LR"
i=0
while [ "$i" -lt 3 ]; do i=$((i + 1)); printf '%s ' "$i"; done; echo
trap 'echo "leaving"' EXIT INT TERM
case $0 in /*) echo "called by a full path" ;; esac
echo 'a\tb'
[ -z "${BASH_VERSION:-}" ] && echo "no bash"
