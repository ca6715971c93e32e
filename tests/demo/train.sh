#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=1500M --time=5
exec "$DEMO_PYTHON" "$DEMO_TRAIN" "$@"
