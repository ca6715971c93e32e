#!/bin/sh
# The suite for a machine with an NVIDIA GPU, as root: packs on a real Slurm and a real GPU.
# Usage: run.sh SLURM_PACKAGES OUT [PYTEST ARGUMENTS]
# SLURM_PACKAGES is what fetch_slurm.sh made; "-" where Slurm is installed. Results go under OUT.
set -eu

packages=$1
out=$2
shift 2
top=$(cd "$(dirname "$0")/../.." && pwd)

if [ "$packages" != - ]; then
    # Only what is not there yet: nothing of the machine is replaced.
    for package in "$packages"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C / --keep-directory-symlink --skip-old-files
    done
    for name in slurmctld slurmd slurmstepd; do
        [ -e "/usr/sbin/$name" ] || ln -s "$name-wlm" "/usr/sbin/$name"
    done
    ldconfig
fi

# An environment of its own over the machine's packages (torch), with csub installed in it.
venv=$(mktemp -d)/venv
python3 -m venv --system-site-packages "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# A virtual environment made inside another one sees the packages of neither by itself.
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/outer.pth"
printf '%s\n' "$top" >"$site/slurm_colloc.pth"
printf '#!/bin/sh\nexec "%s" -m slurm_colloc "$@"\n' "$venv/bin/python" >"$venv/bin/csub"
chmod -R a+rX "$(dirname "$venv")"
chmod a+x "$venv/bin/csub"

{
    nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,compute_mode,mig.mode.current --format=csv
    "$venv/bin/python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'
    slurmd -V
    nproc
    mount | grep cgroup || true
} >"$out/machine.txt" 2>&1
export GPU_SUITE_OUT="$out"
cd "$top"
exec "$venv/bin/python" -m pytest -p no:cacheprovider -q "$@"
