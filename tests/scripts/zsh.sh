#!/bin/zsh
#SBATCH --job-name=zsh
#SBATCH --cpus-per-task=1
#SBATCH --time=5
setopt err_return extended_glob

names=(a b c)
print "zsh: $names[1] ${#names}"
typeset -A table; table[lr]=0.1
for key value in ${(kv)table}; do print "$key=$value"; done
print -l *.sh(N) | wc -l
words="one two"; for word in $words; do print "<$word>"; done
TRAPEXIT() { print "leaving" }
