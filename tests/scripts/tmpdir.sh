#!/bin/bash
#SBATCH --job-name=scratch
#SBATCH --cpus-per-task=1
#SBATCH --time=5
set -eu

scratch=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}
work=$(mktemp -d "$scratch/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp parameters.txt "$work"
cd "$work"
sort -r parameters.txt > sorted.txt
python3 - <<'PYTHON'
import os
import tempfile

with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR")) as file:
    print("temporary file below TMPDIR:", os.path.dirname(file.name) == os.environ.get("TMPDIR", "/tmp"))
PYTHON
cp sorted.txt "$OLDPWD"
echo "$(wc -l < sorted.txt) lines sorted"
