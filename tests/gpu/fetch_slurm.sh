#!/bin/sh
# Download, without installing, Debian's Slurm for a GPU machine that reaches no package archive.
# Usage: fetch_slurm.sh DIRECTORY
set -eu
mkdir -p "$1"
cd "$1"
apt-get download slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 \
    libjson-c5 liblua5.1-0 libyaml-0-2 libnuma1 libmariadb3 libltdl7 libevent-core-2.1-7 \
    libdbus-1-3 libbpf1
