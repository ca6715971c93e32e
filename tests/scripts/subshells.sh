#!/bin/bash
#SBATCH --job-name=pipes
#SBATCH --cpus-per-task=1
#SBATCH --time=5

(cd / && pwd)
basename "$PWD" > /dev/null && echo "still here"
value=$(echo inner; exit 4); echo "$value $?"
seq 5 | tac | head -n 2 | paste -sd,
false | true | false; echo "${PIPESTATUS[*]}"
yes 2>/dev/null | head -n 1; echo "${PIPESTATUS[*]}"
diff <(echo a) <(echo b) > differences.txt; echo "diff: $?"
coproc BC { while read -r line; do echo "$((line))"; done; }
echo "6*7" >&"${BC[1]}"; read -r answer <&"${BC[0]}"; echo "coprocess: $answer"
tee >(wc -c > count.txt) < /etc/hostname > /dev/null; sleep 0.2
[ -s count.txt ] && rm count.txt
exec 5> fifth.txt; echo "by descriptor" >&5; exec 5>&-
ls -d /proc/self/fd/5 2>/dev/null || echo "closed"
