#!/bin/bash
#SBATCH --job-name=stdin
#SBATCH --cpus-per-task=1
#SBATCH --time=5

cat; echo "end of standard input"
read -r line || echo "nothing to read"
[ -t 0 ] && echo "terminal" || echo "no terminal"
python3 -c 'import sys; print(repr(sys.stdin.read()))'
# The loop's own input must survive the commands in it.
printf 'one\ntwo\n' > list.txt
while read -r word; do
    echo "word $word"
    srun -n1 true < /dev/null
done < list.txt
