#!/bin/bash
#SBATCH --job-name=locale
#SBATCH --cpus-per-task=1
#SBATCH --time=5

locale
printf 'b\nA\na\nB\n' | sort | paste -sd' '
python3 -c 'import sys, locale; print(sys.stdout.encoding, locale.getpreferredencoding()); print("Grüße, 世界")'
LC_ALL=C sort <<< $'ä\nz' | paste -sd' '
echo "naïve" > "größe.txt"
umask; date -u -d @0 +%c
