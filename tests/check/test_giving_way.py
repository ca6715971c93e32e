"""What makes a job give way to its neighbours: what is certain, what is only said, what is fine."""

from __future__ import annotations

import pytest

from slurm_colloc.check.check_script import check_script_text
from slurm_colloc.check.collisions import ScriptFinding, Severity, leave_out, list_names
from slurm_colloc.check.python_collisions import find_python_collisions
from slurm_colloc.model.job import Job

GUARD, SIZED, LOCK = "idle-gpu-guard", "memory-sized-batch", "tmp-lock"
DAEMONS, MPS, INDEX = "ends-daemons", "mps-control", "gpu-index"
APPS = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
FREE = "nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits"
USED = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"
LOAD = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"


def read_shell(body: str) -> list[ScriptFinding]:
    job = Job(1, "train", "train.sh", (), "/nonexistent")
    findings, _ = check_script_text(job, f"#!/bin/bash\n{body}\n".encode())
    return [finding for finding in findings if finding.level is not Severity.NOTE]


def pick(findings: list[ScriptFinding], *, alone: bool) -> list[str]:
    return list(dict.fromkeys(f.kind for f in findings if f.level.keeps_alone is alone))


LOSES_WORK = {
    f'[ -n "$({APPS})" ] && exit 0; train': GUARD,
    f'[ -n "$({APPS})" ] && echo busy && exit 0': GUARD,
    f'[[ -z "$({APPS})" ]] || {{ echo busy; exit 1; }}': GUARD,
    f"N=$({APPS} | wc -l)\nif [ $N -gt 0 ]; then echo busy; exit 1; fi": GUARD,
    f"N=$({APPS} | wc -l)\nif (( N > 0 )); then exit; fi": GUARD,
    f'if [ -z "$({APPS})" ]; then python train.py; fi': GUARD,
    f'if [ -z "$({APPS})" ]; then python train.py; else exit 3; fi': GUARD,
    f"{APPS} | grep -q . && exit 0": GUARD,
    f"U=$({LOAD})\n[ $U -gt 10 ] && exit": GUARD,
    f'[ "$({USED})" -gt 500 ] && exit 1': GUARD,
    f'[ "$({FREE})" -lt 30000 ] && exit 1': GUARD,
    "nvidia-smi pmon -c 1 | grep -q python && exit 0": GUARD,
    'if nvidia-smi | grep -q "No running processes"; then srun train; fi': GUARD,
    "gpustat | grep -q python && exit": GUARD,
    "fuser -s /dev/nvidia0 && exit 0": GUARD,
    "if ! fuser /dev/nvidia* > /dev/null; then python train.py; fi": GUARD,
    "for b in 64 32 16 8; do sim --gpu-memory ${b}G && break; done": SIZED,
    "for bs in 64 32; do if python t.py --bs=$bs; then break; fi; done": SIZED,
    "B=64\nwhile ! python t.py --batch $B; do B=$((B/2)); done": SIZED,
    "B=64\nuntil python t.py --batch-size=$B; do B=$((B / 2)); done": SIZED,
    f"F=$({FREE})\npython t.py --batch-size $((F / 500))": SIZED,
    f"F=$({FREE})\nif [ $F -gt 40000 ]; then BATCH=64; else BATCH=32; fi": SIZED,
    "exec 9>/tmp/x_$USER.lock; flock -n 9 || exit 0; train": LOCK,
    "exec 9>/tmp/x.lock\nif ! flock -xn 9; then exit 1; fi": LOCK,
    "exec 9>/dev/shm/x.lock\nif flock --nonblock 9; then python t.py; fi": LOCK,
    "exec 9>/tmp/x.lock; flock -w 5 9 || exit 0": LOCK,
    "(flock -n 9 || exit 1; python t.py) 9>/tmp/x.lock": LOCK,
    "flock -n /tmp/x.lock python t.py": LOCK,
    "mkdir /tmp/x.lock || exit 0": LOCK,
    "[ -e /tmp/x_$USER.pid ] && exit; touch /tmp/x_$USER.pid": LOCK,
    "pkill -u $USER '^nvidia-cuda-mps'": DAEMONS,
    "kill $(pidof nvidia-cuda-mps-control)": DAEMONS,
    "nvidia-cuda-mps-control -d": MPS,
    "echo quit | nvidia-cuda-mps-control": MPS,
    "nvidia-cuda-mps-control <<< quit": MPS,
}


@pytest.mark.parametrize("body", LOSES_WORK)
def test_what_certainly_loses_work_keeps_a_job_alone(body: str) -> None:
    assert pick(read_shell(body), alone=True) == [LOSES_WORK[body]]


ONLY_SAID = {
    f'while [ -n "$({APPS})" ]; do sleep 60; done': [GUARD],
    f'[ -n "$({APPS})" ] && [ -z "$FORCE" ] && exit 0': [GUARD],
    f'[ -n "$({APPS})" -a -z "$FORCE" ] && exit 0': [GUARD],
    f'for i in 1 2; do\n[ -n "$({APPS})" ] && exit 0\ndone': [GUARD],
    f"U=$({LOAD})\nif [ $U -lt 5 ]; then exit 1; fi": [GUARD],
    "echo get_server_list | nvidia-cuda-mps-control": [MPS],
    "ray stop": [DAEMONS],
    "pkill -u $USER python": ["kill-by-name"],
    "killall -9 python3": ["kill-by-name"],
    "exec 9>/tmp/x.lock; flock 9; tar x": ["fixed-temporary-file"],
    "seq 0 $((CUDA_VISIBLE_DEVICES))": [INDEX],
    "N=$((CUDA_VISIBLE_DEVICES + 1))": [INDEX],
    "rm -rf /tmp/data": ["removes-neighbours"],
    "trap 'rm -rf /tmp/$USER' EXIT": ["removes-neighbours"],
}


@pytest.mark.parametrize("body", ONLY_SAID)
def test_what_is_not_certain_is_only_said(body: str) -> None:
    found = read_shell(body)
    assert pick(found, alone=True) == []
    assert pick(found, alone=False) == ONLY_SAID[body]


FINE = [
    "nvidia-smi || exit 1",
    "if ! nvidia-smi > /dev/null; then exit 1; fi",
    "nvidia-smi -L | grep -q H100 || exit 1",
    '[ "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader)" -lt 4000 ] && exit 1',
    f"{APPS} > apps.csv",
    f'echo "$({APPS})"',
    f"{FREE}",
    f"U=$({LOAD})\nif [ $U -lt 10 ]; then echo slow; fi",
    "for try in 3 2 1; do python t.py && break; done",
    "for seed in 1 2 3; do python t.py --seed $seed && break; done",
    "for bs in 16 32 64; do python t.py --bs $bs; done",
    "for bs in 64 32 16; do python t.py --bs $bs; done",
    "while ! python t.py; do sleep 5; done",
    "exec 9>$HOME/x.lock; flock -n 9 || exit 0",
    "exec 9>$TMPDIR/x.lock; flock -n 9 || exit 0",
    "exec 9>/tmp/x_$SLURM_ARRAY_TASK_ID.lock; flock -n 9 || exit 0",
    "flock /tmp/data.lock tar xf data.tar",
    "mkdir $TMPDIR/x || exit 1",
    "mkdir runs/x || exit 1",
    "[ -e /tmp/data.tar ] && exit",
    "rm -rf /tmp/run.$$",
    "rm -rf $TMPDIR/x",
]


@pytest.mark.parametrize("body", FINE)
def test_what_is_fine_is_not_said_to_give_way(body: str) -> None:
    assert read_shell(body) == []


IN_PYTHON = {
    "p = pynvml.nvmlDeviceGetComputeRunningProcesses(h)\nif p: sys.exit(0)": [GUARD],
    "p = nvmlDeviceGetComputeRunningProcesses(h)\nif not p: go()\nelse: raise SystemExit": [GUARD],
    "if nvmlDeviceGetUtilizationRates(h).gpu > 10: exit()": [GUARD],
    "m = nvmlDeviceGetMemoryInfo(h)\nif m.used > 1e9: sys.exit(1)": [GUARD],
    "free, total = torch.cuda.mem_get_info()\nif free < 1e9: sys.exit(1)": [GUARD],
    f"out = subprocess.check_output({APPS.split()!r})\nif out.strip(): sys.exit()": [GUARD],
    "free, total = torch.cuda.mem_get_info()\nbatch_size = int(free / 2e9)": [SIZED],
    "@find_executable_batch_size(starting_batch_size=64)\ndef f(batch_size): ...": [SIZED],
    "@find_executable_batch_size\ndef f(batch_size): ...": [SIZED],
    'TrainingArguments("o", auto_find_batch_size=True)': [SIZED],
    "Tuner(trainer).scale_batch_size(model)": [SIZED],
    'Trainer(auto_scale_batch_size="binsearch")': [SIZED],
    "while True:\n    try: go(bs)\n    except RuntimeError: bs //= 2": [SIZED],
    'f = open("/tmp/x", "w")\n'
    "try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: sys.exit()": [LOCK],
    'if os.path.exists("/tmp/x.lock"): sys.exit()': [LOCK],
    'if Path("/tmp/x.lock").exists(): sys.exit()': [LOCK],
    'os.system("pkill nvidia-cuda-mps")': [DAEMONS],
    # What is not certain, or fine.
    "if not torch.cuda.is_available(): sys.exit(1)": [],
    "m = nvmlDeviceGetMemoryInfo(h)\nif m.total < 4e10: sys.exit(1)": [],
    "free, total = torch.cuda.mem_get_info()\nbatch_size = 64 if total > 4e10 else 32": [],
    "free, total = torch.cuda.mem_get_info()\nprint(free / total)": [],
    "p = nvmlDeviceGetComputeRunningProcesses(h)\nprint(len(p))": [],
    "p = nvmlDeviceGetComputeRunningProcesses(h)\nif p and strict: sys.exit()": [],
    'TrainingArguments("o", auto_find_batch_size=False)': [],
    "for lr in rates:\n    try: go(lr)\n    except RuntimeError: lr /= 2": [],
    'if os.path.exists("/tmp/data.tar"): sys.exit()': [],
    "try: fcntl.flock(f, fcntl.LOCK_EX)\nexcept OSError: sys.exit()": [],
}


@pytest.mark.parametrize("text", IN_PYTHON)
def test_programs_are_read_for_it_too(text: str) -> None:
    assert pick(find_python_collisions(text, "t.py"), alone=True) == IN_PYTHON[text]


VISIBLE = 'os.environ["CUDA_VISIBLE_DEVICES"].split(",")'


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"int({VISIBLE}[0])", [INDEX]),
        (f"ids = [int(i) for i in {VISIBLE}]", [INDEX]),
        (f"ids = list(map(int, {VISIBLE}))", [INDEX]),
        (f"ids = {VISIBLE}", []),
        ('SharedMemory(name="cache", create=True, size=9)', ["shared-memory-name"]),
        ('SharedMemory(name="cache")', []),
        ("SharedMemory(create=True, size=9)", []),
        ('SharedMemory(name=f"c{os.getpid()}", create=True, size=9)', []),
    ],
)
def test_indices_and_names_of_memory_are_said(text: str, kinds: list[str]) -> None:
    assert pick(find_python_collisions(text, "t.py"), alone=False) == kinds


def test_a_number_of_its_own_cures_what_collides_by_the_job_id() -> None:
    found = read_shell(
        "mkdir -p ckpt/$SLURM_JOB_ID\nexport MASTER_PORT=$((9000 + SLURM_JOB_ID % 99))\n"
        "mkdir /tmp/x"
    )
    assert pick(found, alone=False) == ["job-id-path", "fixed-port", "fixed-temporary-file"]
    assert pick(leave_out(found, (), own_id=True), alone=False) == ["fixed-temporary-file"]
    assert leave_out(found, (), own_id=False) == found


def test_what_is_accepted_is_left_out() -> None:
    found = read_shell("flock -n /tmp/x.lock python t.py\npkill python")
    assert [f.kind for f in leave_out(found, ["tmp-lock"], own_id=True)] == ["kill-by-name"]
    assert leave_out(found, ["all"], own_id=True) == []
    assert {f.kind for f in found} <= {*list_names()}


@pytest.mark.parametrize("depth", [100, 3000])
def test_deep_nesting_is_no_failure(depth: int) -> None:
    body = "echo " + "$(echo " * depth + "x" + ")" * depth
    job = Job(1, "train", "train.sh", (), "/nonexistent")
    findings, _ = check_script_text(job, f"#!/bin/bash\n{body}\npkill python\n".encode())
    deep = [("not-read", Severity.NOTE)]
    assert [(f.kind, f.level) for f in findings] == (
        deep if depth == 3000 else [("kill-by-name", Severity.PROBLEM)]
    )
