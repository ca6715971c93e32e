#!/bin/bash -l
#SBATCH --job-name=modules
#SBATCH --cpus-per-task=1
#SBATCH --time=5

source /etc/profile.d/modules.sh
module purge
module use "$PWD/modulefiles"
module load simulator/2.1
module list -t 2>&1 | grep simulator
echo "$SIMULATOR_VERSION in ${SIMULATOR_HOME##*/}"
simulate
module load missing/1.0 2>/dev/null || echo "no such module"
module unload simulator
echo "afterwards: ${SIMULATOR_VERSION:-unset}"
type -t module
