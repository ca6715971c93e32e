#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=1500M --time=5
# The nodes' GPU is simulated: this keeps some of it busy as long as the training runs.
if command -v simgpu >/dev/null; then
    simgpu run --seconds=300 --gpu-memory=2G --sm=20 &
    gpu=$!
    trap 'kill "$gpu"' EXIT
fi
"$DEMO_PYTHON" "$DEMO_TRAIN" "$@"
