#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=10

export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
python hf_train.py --output_dir model --max_steps 2
