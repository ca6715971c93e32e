#!/bin/sh
# Here a model would be trained. The working directory is the task's.
echo "$SLURM_COLLOC_MEMBER $1" > loss.txt
