#!/bin/bash
#SBATCH --job-name=paths
#SBATCH --array=0-3
#SBATCH --cpus-per-task=1
#SBATCH --time=5

cd "$SLURM_SUBMIT_DIR" || exit 1
mkdir -p work/"$SLURM_ARRAY_TASK_ID" && cd work/"$SLURM_ARRAY_TASK_ID" || exit 1
cat ../../parameters.txt | wc -l > lines.txt
ln -sf ../../parameters.txt link.txt
mkdir -p deep/er && pushd deep/er > /dev/null && echo "$OLDPWD" | grep -c work && popd > /dev/null
cd "$OLDPWD" && basename "$PWD"
cd "$SLURM_SUBMIT_DIR" || exit 1
[ "$PWD" = "$SLURM_SUBMIT_DIR" ] && echo "back where it was submitted"
realpath --relative-to="$SLURM_SUBMIT_DIR" work
