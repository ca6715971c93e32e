#!/bin/bash
#SBATCH --job-name=conda-train
#SBATCH --cpus-per-task=1
#SBATCH --time=10

# As `conda init` writes it into .bashrc, for a batch script that does not read that.
source "$HOME/miniconda3/etc/profile.d/conda.sh" 2>/dev/null || source miniconda3/etc/profile.d/conda.sh
conda activate train
echo "environment: $CONDA_DEFAULT_ENV, level $CONDA_SHLVL"
echo "python: ${PYTHON_OF_TRAIN#"$PWD"/}"
which train-tool | sed "s|$PWD/||"
train-tool --epochs 2 > losses.csv
conda deactivate
echo "after: ${CONDA_DEFAULT_ENV:-none}, level $CONDA_SHLVL, ${PYTHON_OF_TRAIN:-unset}"
command -v train-tool || echo "train-tool is gone"
