#!/bin/sh
# Download, without installing, what a GPU machine needs that reaches no package archive: Debian's
# Slurm, and the Python packages of the suite that it may lack.
# Usage: fetch_slurm.sh DIRECTORY
set -eu
mkdir -p "$1"
cd "$1"
apt-get download slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 \
    libjson-c5 liblua5.1-0 libyaml-0-2 libnuma1 libmariadb3 libltdl7 libevent-core-2.1-7 \
    libdbus-1-3 libbpf1
# These are pure Python; run.sh unpacks what cannot be imported there.
python3 -m pip download -q --no-deps --only-binary=:all: --dest . \
    nvidia-ml-py pytest-timeout pytest-xdist execnet timm
# These are not: CSUB_GPU_PYTHON is the GPU machine's version of Python.
python3 -m pip download -q --no-deps --only-binary=:all: --dest . \
    --python-version "${CSUB_GPU_PYTHON:-3.12}" \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 tree-sitter tree-sitter-bash
