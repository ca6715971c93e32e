#!/bin/bash
#SBATCH -J venv
#SBATCH -c 1
#SBATCH -t 00:05:00
set -e

python3 -m venv --without-pip env
source env/bin/activate
echo "prefix: $(basename "$VIRTUAL_ENV")"
python - <<'PYTHON'
import sys

print("inside:", sys.prefix != sys.base_prefix)
PYTHON
deactivate
echo "VIRTUAL_ENV is ${VIRTUAL_ENV:-unset}"
