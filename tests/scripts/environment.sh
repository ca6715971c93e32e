#!/bin/bash
#SBATCH --job-name=environment
#SBATCH --cpus-per-task=1
#SBATCH --time=5

printf '<%s>\n' "$WITH_SPACES" "$WITH_LINES" "$WITH_UNICODE" "$WITH_QUOTES" "${EMPTY-unset}"
greet "from the submitting shell"
bash -c 'greet "from a child"'
export OWN="set here"
python3 - <<'PYTHON'
import os

for name in ("WITH_SPACES", "WITH_LINES", "WITH_UNICODE", "WITH_QUOTES", "EMPTY", "OWN"):
    print(name, ascii(os.environ.get(name)))
PYTHON
printenv WITH_LINES > lines.txt
env -u WITH_SPACES bash -c 'echo "${WITH_SPACES-gone}"'
echo "$SLURM_JOB_NAME $SLURM_JOB_NUM_NODES $SLURM_NNODES $SLURM_CPUS_PER_TASK $SLURM_JOB_PARTITION"
echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_GTIDS"
env | grep '^SLURM_ARRAY' || echo "no array"
