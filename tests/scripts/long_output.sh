#!/bin/bash
#SBATCH --job-name="a name with spaces"
#SBATCH --output=%x.log
#SBATCH --error=%x.err
#SBATCH --cpus-per-task=1
#SBATCH --time=5

seq 100000
printf '\000\001\377\n binary \033[1m bold\033[0m\r\n'
head -c 200000 /dev/zero
for i in $(seq 50); do echo "error $i" >&2; done
printf 'no newline at the end'
