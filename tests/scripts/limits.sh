#!/bin/bash
#SBATCH --job-name=limits
#SBATCH --cpus-per-task=1
#SBATCH --time=5

ulimit -a
ulimit -Hn
ulimit -n 64
python3 -c 'import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])'
ulimit -s 4096 && bash -c 'ulimit -s'
umask 027; touch private; stat -c %a private
nice
cat /proc/self/oom_score_adj
