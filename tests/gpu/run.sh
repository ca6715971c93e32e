#!/bin/sh
# The suite for a machine with an NVIDIA GPU, as root: packs on a real Slurm and a real GPU.
# Usage: run.sh PACKAGES OUT [hooks | measuring | planner | policies | degree | afternoon | lanes | serving | inputs | gpus | kills | oversubscribe | mig | PYTEST ARGUMENTS]
# PACKAGES is what fetch_slurm.sh made; "-" where Slurm is installed. Without pytest arguments:
# the measurements of test_gpu_mps.py, then the MPS contract and the node side on this hardware.
# hooks: root's prolog and epilog, test_gpu_hooks.py and test_gpu_containers.py, in about six
# minutes.
# measuring: what the monitor says against what programs, driver and GPU say, and what it costs,
# test_gpu_monitor.py, in about eight minutes. CSUB_GPU_PARTS names those of its parts that are to run:
# "alone timeslice mps pairs delayed mps-unlimited"; "alone mps-unlimited pairs" takes five minutes.
# A pack needs the usage profile that alone makes.
#
# planner: packs as csub plans them against one training at a time, test_gpu_planner.py; its
# CSUB_GPU_BATCHES, CSUB_GPU_ROUNDS, CSUB_GPU_WINDOW_S, CSUB_GPU_WALL_S, CSUB_GPU_RAMP_S and
# CSUB_GPU_BUDGET_S say what and how much, CSUB_GPU_LIMIT_S when to end.
#
# policies: a mix of 30 jobs for each GPU under csub and under rules of others, by turns, without
# Slurm, test_gpu_policies.py; CSUB_GPU_RULES, CSUB_GPU_SEED, CSUB_GPU_USUAL_S and CSUB_GPU_SECONDS say
# which and how much, CSUB_GPU_LIMIT_S when to end. What several calls have measured of a mix becomes one
# table by python -m benchmarks.gpu.policies --merge A.csv B.csv.
#
# degree: trainings of a minute that csub does not know, and what a user would type in its place,
# test_gpu_degree.py; its CSUB_GPU_DEGREE, CSUB_GPU_TRAINING, CSUB_GPU_MEMBERS and CSUB_GPU_WORK_S say
# what and how much. It writes OUT/degree.json, degree.csv and kept-degree.tar.gz.
#
# afternoon: twenty unlike trainings typed one by one, and a wrapper of one line, test_gpu_afternoon.py;
# its CSUB_GPU_AFTERNOON says which runs. It writes OUT/afternoon.json, afternoon.csv and profiles.json.
#
# lanes: as afternoon, side by side on several GPUs of one host, each with its part of the cores:
# CSUB_GPU_LANES="wrapper twelve-wrapper|unknown-3 known-3|serving"; each writes to OUT/lane-N.
#
# serving: latency of a served model in one pack with four trainings, test_gpu_serving.py; it writes
# OUT/serving.json.
#
# inputs: trainings on JPEG pictures: one loader for many, cores by need, stalls, test_gpu_inputs.py;
# its CSUB_GPU_INPUTS says which runs. It writes OUT/inputs.json.
#
# gpus: packs over two real GPUs of one host, test_gpu_several.py; CSUB_GPU_GPUS names its parts,
# "small pairs mixed lost"; its CSUB_GPU_MEMBERS and CSUB_GPU_WORK_S say how much, CSUB_GPU_LIMIT_S when to
# end. It writes OUT/several.json, several.csv, several-reports.txt and kept-several.tar.gz.
#
# kills: the end of an MPS daemon with 48 clients after KILL, test_gpu_kills.py; it writes OUT/kills.json.
#
# oversubscribe: eight trainings of 20 GB that take turns on one GPU of 80 GB, test_gpu_oversubscribe.py; its
# CSUB_GPU_MEMBERS, CSUB_GPU_MEMBER_GB, CSUB_GPU_STEPS and CSUB_GPU_TURN_S say how much. It writes
# OUT/oversubscribe.json and kept-oversubscribe.tar.gz.
#
# mig: what NVML says of MIG while it is off, against the simulation's tables, tests/simgpu/test_mig_contract.py;
# it takes seconds, needs nvidia-ml-py and no Slurm, and changes nothing.
#
# OUT/machine.txt       the machine
# OUT/suite.txt         what pytest printed
# OUT/mps.json          throughput and wall times, alone and shared
# OUT/mps.csv           the progress of every training that they were computed from
# OUT/mps_faults.json   for each fault: states, causes, evidence, what was left behind
# OUT/mps_times.json    start and stop of the daemons; the GPU before and after
# OUT/kept.tar.gz       the logs of all packs, members and Slurm daemons
# and of hooks:
# OUT/hooks.csv         every phase of every played prolog and epilog, with NVML cold and warm
# OUT/hooks.json        medians of these; what each end of a pack left; clients in namespaces of
#                       their own; throughput under the node's daemon and the pack's own
# OUT/checks.txt        what csub doctor and csub admin verify printed
# OUT/kept-containers.tar.gz  the logs of the pack with a /tmp and a /dev/shm of its own
# and of measuring:
# OUT/measuring.json    errors against goals, summaries, looks by nvidia-smi, times of NVML's calls
# OUT/measuring.csv     every unit of four steps of the paired measurement: its begin and length in
#                       nanoseconds, with or without hooks, the monitor running or stopped
# OUT/measuring.tar.gz  recordings: a state directory of the packs, on which csub reports again
# OUT/seen.txt          what csub top, report and profile list printed
# OUT/kept-measuring.tar.gz  the logs of all packs, members and Slurm daemons
# and of planner:
# OUT/planner.json      every run: rates, wall times, what was planned, and the report
# OUT/planner.csv       the progress of every training
# OUT/kept-planner.tar.gz     the logs of all packs, members and Slurm daemons
# and of policies:
# OUT/policies-N.csv    by GPU, every job under every rule: steps, begin, end, slowdown, its prediction
# OUT/policies-N.json   what was measured alone, the packs of every rule, and why they were made
set -eu

packages=$1
out=$2
shift 2
top=$(cd "$(dirname "$0")/../.." && pwd)
# Not below /tmp: some jobs have one of their own.
work=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$work"' EXIT
chmod a+rx "$work"
mkdir -p "$out"
out=$(cd "$out" && pwd)

# Where the loader finds a library of the driver for this process; others may lack a variable.
find_library() {
    python3 - "$1" <<'END'
import ctypes, os, sys
name = sys.argv[1]
ctypes.CDLL(name)
with open("/proc/self/maps") as maps:
    stem = name.partition(".so")[0]
    print(next(os.path.dirname(line.split()[-1]) for line in maps if f"/{stem}.so" in line))
END
}

if [ "$packages" != - ]; then
    # Only what is not there yet: nothing of the machine is replaced.
    for package in "$packages"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C / --keep-directory-symlink --skip-old-files
    done
    for name in slurmctld slurmd slurmstepd; do
        [ -e "/usr/sbin/$name" ] || ln -s "$name-wlm" "/usr/sbin/$name"
    done
    # The MPS daemon and ordinary users start with a clean environment.
    for library in libcuda.so.1 libnvidia-ml.so.1; do
        if ! env -u LD_LIBRARY_PATH python3 -c "import ctypes; ctypes.CDLL('$library')" 2>/dev/null; then
            find_library "$library" >>/etc/ld.so.conf.d/gpu-suite.conf || true
        fi
    done
    ldconfig
fi

# Ordinary users take part, so they must be able to read the checkout.
if ! setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$top/slurm_colloc/__main__.py" ||
    [ "${top#/tmp/}" != "$top" ]; then
    mkdir "$work/checkout"
    (cd "$top" && tar -c --exclude='__pycache__' pyproject.toml slurm_colloc lab templates \
        hooks site-config tests benchmarks) | tar -x -C "$work/checkout"
    top=$work/checkout
    chmod -R a+rX "$top"
fi

# An environment of its own over the machine's packages (torch), with csub installed in it.
venv=$work/venv
python3 -m venv --system-site-packages --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# A virtual environment made inside another one sees the packages of neither by itself.
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/outer.pth"
printf '%s\n' "$top" "$top/lab" >"$site/slurm_colloc.pth"
# There is no pip: what it would write for csub to find the lab's commands.
python3 - "$top/lab/pyproject.toml" "$site/slurm_colloc_lab-0.dist-info" <<'END'
import pathlib, sys, tomllib
project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]
info = pathlib.Path(sys.argv[2])
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
lines = []
for group, entries in project["entry-points"].items():
    lines += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
(info / "entry_points.txt").write_text("\n".join(lines) + "\n")
END
printf '#!/bin/sh\nexec "%s" -m slurm_colloc "$@"\n' "$venv/bin/python" >"$venv/bin/csub"
for pair in pynvml=nvidia_ml_py pytest_timeout=pytest_timeout xdist=pytest_xdist execnet=execnet timm=timm \
    tree_sitter=tree_sitter tree_sitter_bash=tree_sitter_bash; do
    "$venv/bin/python" -c "import ${pair%=*}" 2>/dev/null && continue
    for wheel in "$packages/${pair#*=}"-*.whl; do
        [ ! -e "$wheel" ] || "$venv/bin/python" -m zipfile -e "$wheel" "$site"
    done
done
# Frameworks and HyperQueue, where they were fetched (degree can run them): all that is not there.
for wheel in "$packages"/frameworks/*.whl; do
    [ -e "$wheel" ] || break
    first=$(basename "$wheel" | sed 's/-.*//' | tr '[:upper:]' '[:lower:]')
    "$venv/bin/python" -c "import importlib.metadata as m; m.version('$first')" 2>/dev/null ||
        "$venv/bin/python" -m zipfile -e "$wheel" "$site"
done
# As in the nodes' own tree: hooks write no bytecode.
"$venv/bin/python" -m compileall -q "$site" "$top/slurm_colloc" "$top/lab" || true
chmod -R a+rX "$venv" "$top/slurm_colloc" "$top/lab"
chmod a+x "$venv/bin/csub"

{
    nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,compute_mode,mig.mode.current --format=csv
    # The first use of the GPU, so that what the driver keeps from then on is there.
    "$venv/bin/python" -c '
import sys, torch
print("python", sys.version.split()[0], "torch", torch.__version__)
print("GPU works:", torch.ones(4, device="cuda").sum().item() == 4)'
    "$venv/bin/python" -c 'import timm; print("timm", timm.__version__)'
    "$venv/bin/python" -c 'import pynvml; print("pynvml", pynvml.__file__)'
    PATH=$PATH:/usr/local/nvidia/bin command -v nvidia-cuda-mps-control nvidia-cuda-mps-server
    slurmd -V
    nproc
    mount | grep cgroup
    uname -r
    cat /etc/ld.so.conf.d/gpu-suite.conf
} >"$out/machine.txt" 2>&1 || true

# See tests/bed.py.
export GPU_SUITE_OUT="$out" CSUB_TEST_STARTED=1
# Tests that bring a stub of the server along use this machine's control daemon.
if [ -z "${CSUB_NVIDIA_MPS:-}" ]; then
    control=$(PATH=$PATH:/usr/local/nvidia/bin command -v nvidia-cuda-mps-control || true)
    [ -z "$control" ] || export CSUB_NVIDIA_MPS="${control%/*}"
fi
cd "$top"
: >"$out/suite.txt"
worst=0
# Run pytest for at most so many seconds; its words go to the terminal and into suite.txt.
run_pytest() {
    limit_s=$1
    shift
    {
        timeout --signal=INT --kill-after=40 "$limit_s" \
            "$venv/bin/python" -u -m pytest -p no:cacheprovider -q "$@" 2>&1 &&
            echo 0 >"$work/status" || echo $? >"$work/status"
    } | tee -a "$out/suite.txt"
    read -r status <"$work/status"
    [ "$status" -eq 0 ] || worst=$status
}

if [ "$*" = hooks ]; then
    run_pytest 400 -s tests/gpu/test_gpu_hooks.py tests/gpu/test_gpu_containers.py
    run_pytest 240 -n 4 -p no:benchmark -k 'not simulated' tests/host/test_group_end.py tests/host/test_signals.py \
        tests/host/test_node_cases.py
elif [ "$*" = measuring ]; then
    run_pytest 505 -s tests/gpu/test_gpu_monitor.py
elif [ "$*" = planner ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-560}" -s tests/gpu/test_gpu_planner.py
elif [ "$*" = policies ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-560}" -s tests/gpu/test_gpu_policies.py
elif [ "$*" = degree ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-590}" -s tests/gpu/test_gpu_degree.py
elif [ "$*" = afternoon ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-590}" -s tests/gpu/test_gpu_afternoon.py
elif [ "$*" = lanes ]; then
    count=$(printf '%s\n' "$CSUB_GPU_LANES" | tr '|' '\n' | wc -l)
    lane=0
    while [ "$lane" -lt "$count" ]; do
        runs=$(printf '%s\n' "$CSUB_GPU_LANES" | cut -d '|' -f "$((lane + 1))")
        mkdir -p "$out/lane-$lane"
        suite=afternoon
        [ "$runs" != serving ] || suite=serving
        # useradd and Slurm's ports take turns.
        sleep 2
        env GPU_SUITE_OUT="$out/lane-$lane" CSUB_GPU_LANE="$lane/$count" CSUB_GPU_AFTERNOON="$runs" \
            timeout --signal=INT --kill-after=40 "${CSUB_GPU_LIMIT_S:-570}" \
            "$venv/bin/python" -u -m pytest -p no:cacheprovider -q -s "tests/gpu/test_gpu_$suite.py" \
            >"$out/lane-$lane/suite.txt" 2>&1 || echo "lane $lane: $?" >>"$out/suite.txt" &
        lane=$((lane + 1))
    done
    wait
    [ ! -s "$out/suite.txt" ] || worst=1
    tail -n 3 "$out"/lane-*/suite.txt
elif [ "$*" = serving ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-570}" -s tests/gpu/test_gpu_serving.py
elif [ "$*" = inputs ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-570}" -s tests/gpu/test_gpu_inputs.py
elif [ "$*" = gpus ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-570}" -s tests/gpu/test_gpu_several.py
elif [ "$*" = kills ]; then
    run_pytest 400 -s tests/gpu/test_gpu_kills.py
elif [ "$*" = oversubscribe ]; then
    run_pytest "${CSUB_GPU_LIMIT_S:-570}" -s tests/gpu/test_gpu_oversubscribe.py
elif [ "$*" = mig ]; then
    run_pytest 120 -n 0 -p no:benchmark -k driver tests/simgpu/test_mig_contract.py
elif [ $# -gt 0 ]; then
    run_pytest 900 "$@"
else
    run_pytest 900 -s tests/gpu/test_gpu_mps.py
    run_pytest 300 -n 6 -p no:benchmark -k 'not simulated and not nvidia-550' tests/mps tests/host
fi
exit "$worst"
