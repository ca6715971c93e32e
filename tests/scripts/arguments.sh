#!/bin/bash
#SBATCH --job-name=arguments
#SBATCH --cpus-per-task=1
#SBATCH --time=5

echo "$# arguments"
printf '<%s>\n' "$@"
large=$(printf 'x%.0s' $(seq 100000))
python3 -c 'import sys; print(len(sys.argv[1]))' "$large"
seq 20000 | xargs echo | wc -w
while getopts "l:v" option; do echo "$option ${OPTARG:-}"; done
shift $((OPTIND - 1))
echo "left: $1"
