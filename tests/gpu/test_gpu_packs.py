"""Packs of real trainings on a real GPU, under a real Slurm that hands out the real device."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root]
TRAIN = Path(__file__).with_name("train_gpu.py")


@pytest.fixture(scope="module")
def gpu_sandbox() -> Iterator[Sandbox]:
    """One node with the machine's real GPUs and CPUs."""
    if not Path("/dev/nvidia0").exists() or os.geteuid() != 0:
        pytest.skip("needs an NVIDIA GPU and root")
    directory = Path(tempfile.mkdtemp(prefix="gs", dir="/var/tmp"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory / "c")
    try:
        sandbox.up(SandboxSpec(sandbox.directory, nodes=1, cpus_per_node=os.cpu_count()))
        yield sandbox
    finally:
        sandbox.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def home(gpu_sandbox: Sandbox) -> Iterator[Path]:
    """A directory to submit from."""
    directory = Path(tempfile.mkdtemp(prefix="gh", dir="/var/tmp"))
    yield directory
    run(["scancel", "--me"], env=environment(gpu_sandbox, directory), check=False)
    shutil.rmtree(directory, ignore_errors=True)


def environment(sandbox: Sandbox, home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, **sandbox.env(), "PATH": path, "XDG_STATE_HOME": str(home / "state")}


def csub(sandbox: Sandbox, home: Path, *arguments: str) -> str:
    ended = run(
        ["csub", *arguments],
        env=environment(sandbox, home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def train(sandbox: Sandbox, home: Path, degree: int, start_s: float) -> list[dict[str, object]]:
    """Train `degree` members in one pack and return what each printed."""
    begin = time.time() + start_s
    script = home / f"train{degree}.sh"
    script.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{TRAIN}" --begin {begin}\n')
    job_id = csub(
        sandbox, home, "--parsable", f"--array=1-{degree}", f"--degree={degree}",
        "--share=timeslice", "--gres=gpu:1", "-c1", "--mem=3G", "--time=5", str(script),
    ).strip()  # fmt: skip
    csub(sandbox, home, "wait", job_id)
    results = []
    for number in range(1, degree + 1):
        text = (home / f"slurm-{job_id}_{number}.out").read_text()
        results.append(json.loads(text.strip().splitlines()[-1]))
    return results


def test_the_sandbox_hands_out_the_real_gpus(gpu_sandbox: Sandbox) -> None:
    status = gpu_sandbox.status()
    assert all(node.gpus for node in status.nodes)
    print(status)


def test_four_trainings_share_one_gpu_at_the_same_time(gpu_sandbox: Sandbox, home: Path) -> None:
    rounds = []
    for _ in range(2):
        alone = train(gpu_sandbox, home, 1, 16.0)
        packed = train(gpu_sandbox, home, 4, 20.0)
        rounds.append((alone, packed))
    Path(os.environ.get("GPU_SUITE_OUT", "/tmp"), "timeslice.json").write_text(json.dumps(rounds))
    for alone, packed in rounds:
        # All were training before the common window began, on the same device.
        assert all(float(str(row["ready_before_begin_s"])) > 0 for row in [*alone, *packed])
        assert len({row["gpu_uuid"] for row in [*alone, *packed]}) == 1
        assert all(row["loss_is_finite"] for row in [*alone, *packed])
        assert len({row["member"] for row in packed}) == 4
        # Each on CPUs of its own.
        cpus = [cpu for row in packed for cpu in json.loads(str(row["cpus"]))]
        assert len(set(cpus)) == len(cpus) == 4
