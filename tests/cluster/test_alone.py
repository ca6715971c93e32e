"""A job that is typed alone and could be joined: until one joins, its GPU is as under sbatch."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import (
    explained,
    journal,
    read_setup,
    simulation_of,
    submit_pack,
    write_settings,
)
from .test_joining import on_terminal

pytestmark = pytest.mark.slurm

DIRECTIVES = "#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100M --time=10"
# The simulated GPU comes without one; the same table from its NVML.
NVIDIA_SMI = f"""\
#!{sys.executable} -I
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    for p in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(i)):
        print(p.pid)
"""
GUARD = """\
[ -n "$(./nvidia-smi --query-compute-apps=pid --format=csv,noheader)" ] && exit 0
simgpu run --seconds 1 && echo trained"""
TRIALS = """\
for b in 64 32 16 8; do simgpu run --gpu-memory ${b}G --seconds 1 && break; done
echo size=$b"""
# Without --accept, neither of them could be joined.
TRAIN = 'simgpu run --seconds 300 & pid=$!; until [ -e "$1" ]; do sleep 0.1; done; kill $pid'


@pytest.fixture
def user(mps_user: CsubUser) -> CsubUser:
    """A user with nvidia-smi, and scripts that look at their GPU."""
    mps_user.script("nvidia-smi", "").write_text(NVIDIA_SMI)
    for name, body in (("guard.sh", GUARD), ("trials.sh", TRIALS), ("train.sh", TRAIN)):
        mps_user.script(name, body, directives=DIRECTIVES)
    return mps_user


def run_by_sbatch(user: CsubUser, script: str) -> str:
    """What a script prints under sbatch."""
    user.run(["sbatch", "--wait", "--output=control.out", script])
    return user.output("control.out")


def type_alone(user: CsubUser, *words: str) -> str:
    """Submit on a terminal; the job's id."""
    told = on_terminal(user, *words)
    found = re.search(r"Submitted batch job (\d+)", told)
    assert found, told
    return found.group(1)


def finish_open(user: CsubUser, job_id: str) -> dict[str, Any]:
    """Wait for the end of a job that could have been joined, and shared by MPS; its row."""
    [row] = user.finish(job_id).values()
    assert row["state"] == "COMPLETED"
    assert row["mode"] == "mps", read_setup(user, job_id)
    return row


@pytest.mark.parametrize("options", [(), ("--no-requeue",)])
def test_a_job_alone_finds_no_process_but_its_own_on_its_gpu(
    user: CsubUser, options: tuple[str, ...]
) -> None:
    assert run_by_sbatch(user, "guard.sh").splitlines()[-1] == "trained"
    job_id = type_alone(user, "--accept=idle-gpu-guard", *options, "guard.sh")
    with explained(user, job_id):
        row = finish_open(user, job_id)
        assert user.output(f"slurm-{job_id}.out").splitlines()[-1] == "trained"
        assert row["is_mps_client"]
        # One that may not run again is not the first to find out whether MPS works.
        proofs = [e["status"] for e in journal(user, job_id, "mps_server")].count("ACTIVE")
        assert proofs == (2 if options else 1)


def test_a_job_alone_has_the_memory_of_its_gpu(user: CsubUser) -> None:
    assert "size=64" in run_by_sbatch(user, "trials.sh")
    job_id = type_alone(user, "--accept=memory-sized-batch", "trials.sh")
    with explained(user, job_id):
        assert finish_open(user, job_id)["gpu_memory_limit_mb"] is None
        assert "size=64" in user.output(f"slurm-{job_id}.out")


def test_one_that_joins_has_a_limit_and_the_first_is_told(user: CsubUser) -> None:
    first = type_alone(user, "train.sh", "end")
    with explained(user, first):
        user.wait_for_rows(first, lambda rows: bool(rows[1]["is_mps_client"]), "a client")
        second = type_alone(user, "train.sh", "end")

        def look() -> list[dict[str, Any]]:
            rows = json.loads(user.csub("queue", "--json").stdout)
            running = [row for row in rows if row["state"] == "RUNNING"]
            return running if len(running) == 2 else []

        rows = sorted(wait_until(look, "both run"), key=lambda row: float(row["started_at"]))
        assert rows[0]["gpu_memory_limit_mb"] is None
        assert rows[1]["gpu_memory_limit_mb"] is not None
        told = user.csub("why", first).stdout
        assert "sharing with" in told
        assert "it began alone and has no limit of GPU memory" in told
        (user.home / "end").touch()
        user.csub("wait", first, second)


@pytest.mark.parametrize(("option", "starts"), [("--requeue", 2), ("--no-requeue", 1)])
def test_where_no_server_comes_up_a_job_alone_runs_without_mps(
    user: CsubUser, option: str, starts: int
) -> None:
    broken = user.home / "broken"
    broken.mkdir()
    own = simulation_of(user.sandbox) / "bin"
    (broken / "nvidia-cuda-mps-control").symlink_to(own / "nvidia-cuda-mps-control")
    (broken / "nvidia-cuda-mps-server").write_text("#!/bin/sh\nexit 1\n")
    (broken / "nvidia-cuda-mps-server").chmod(0o755)
    user.extra["PATH"] = f"{broken}:{user.environment['PATH']}"
    user.script("once.sh", "exec simgpu run --seconds 0.5", directives=DIRECTIVES)
    job_id = type_alone(user, option, "once.sh")
    with explained(user, job_id):
        [row] = user.finish(job_id).values()
        assert (row["state"], row["mode"], row["starts"]) == ("COMPLETED", "timeslice", starts)


NAMES = """\
show='echo "$CUDA_VISIBLE_DEVICES ${CUDA_MPS_PIPE_DIRECTORY-unset}"'
eval "$show" && srun bash -c "$show"
[ -e "$CUDA_MPS_PIPE_DIRECTORY" ] && echo there
python3 -c 'import os; print("first", int(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]))'
seq 0 $((CUDA_VISIBLE_DEVICES))"""


def read_names(user: CsubUser, job_id: str) -> tuple[str, list[str]]:
    """What both members print of their GPU's name: once for each and its step, and the rest."""
    user.finish(job_id)
    own, *rest = user.output(f"slurm-{job_id}_1.out").splitlines()
    assert rest.pop(0) == own
    return own, rest


def test_a_gpu_has_a_number_in_members_and_steps_where_the_setting_says_so(user: CsubUser) -> None:
    write_settings(user, gpu_names="index")
    user.script("names.sh", NAMES)
    job_id = submit_pack(user, "names.sh", "names.sh")
    with explained(user, job_id):
        own, rest = read_names(user, job_id)
        assert own.split()[0] == "0"
        assert own.endswith("/p")
        assert rest == ["there", "first 0", "0"]


def test_no_daemon_gets_a_member_without_mps_nor_its_steps(user: CsubUser) -> None:
    user.script("names.sh", NAMES)
    job_id = submit_pack(user, "--share=timeslice", "names.sh", "names.sh")
    with explained(user, job_id):
        own, rest = read_names(user, job_id)
        assert own.endswith("/mps")
        assert "there" not in rest
