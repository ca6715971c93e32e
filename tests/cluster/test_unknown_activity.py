"""A GPU without GPM: packs live on GPU memory and rates; DCGM tells the activity where it runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import explained, journal, pack_directory, write_settings

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=1G", "--time=30")
ACTIVITY = ("sm_active", "dram_active", "tensor_active", "engine_active")

# Without PyTorch, so it says itself how far it is. It uses the simulated GPU through a child.
TRAIN = """\
import subprocess, sys, time
from pathlib import Path
from slurm_colloc import progress

use = subprocess.Popen(["simgpu", "run", "--seconds=300", "--gpu-memory=2G", "--sm=20"])
stop = Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
    progress.step(samples=8)
use.kill()
use.wait()
"""


@pytest.fixture(scope="module")
def a100_cluster() -> Iterator[Sandbox]:
    """One node with two simulated A100, which have no GPM."""
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with running_sandbox(
        nodes=1, gpus_per_node=2, cpus_per_node=16, simgpu=True, gpu_type="a100"
    ) as sandbox:
        yield sandbox


@pytest.fixture
def user(a100_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(a100_cluster, accounts[0]) as somebody:
        (somebody.home / "train.py").write_text(TRAIN)
        stop = somebody.home / "stop"
        somebody.script("train.sh", f'exec python3 "$HOME/train.py" {stop}')
        yield somebody


def read_member(user: CsubUser, job_id: str, number: int) -> dict[str, Any]:
    latest = pack_directory(user, job_id) / "latest.json"
    if not latest.exists():
        return {}
    return dict(json.loads(latest.read_text())["members"].get(str(number)) or {})


def run_alone(user: CsubUser) -> dict[str, Any]:
    """Run the training alone for long enough; its usage profile."""
    job_id = user.submit(*OPTIONS, "train.sh")
    with explained(user, job_id):
        wait_until(
            lambda: (read_member(user, job_id, 1).get("settled_s") or 0.0) > 25.0,
            "it was alone for long enough",
            patience_s=180,
        )
    (user.home / "stop").touch()
    user.csub("wait", job_id)
    (user.home / "stop").unlink()
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    return dict(profile)


def test_what_is_known_counts_and_the_pack_is_measured_as_it_runs(user: CsubUser) -> None:
    profile = run_alone(user)
    assert {name: profile[name] for name in ACTIVITY} == dict.fromkeys(ACTIVITY)
    assert profile["gpu_memory_peak_mb"] == 2048 + 512
    assert profile["steps_per_s"]["mean"] > 0
    two = ("pack", "train.sh", "train.sh")
    told = " ".join(user.csub("plan", "--explain", *OPTIONS, *two).stdout.split())
    assert "SM activity is not (no GPU before Hopper tells it)" in told
    assert "the pack is measured as it runs" in told
    (pack,) = json.loads(user.csub("plan", "--json", *OPTIONS, *two).stdout)["packs"]
    assert (pack["degree"], pack["is_measured"], pack["known"]) == (2, True, False)
    assert [member["known_by"] for member in pack["members"]] == ["exact", "exact"]
    job_id = user.submit("pack", *OPTIONS, "train.sh", "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING"})
    with explained(user, job_id):
        wait_until(lambda: read_member(user, job_id, 2).get("steps"), "both are measured")
    assert journal(user, job_id, "probe") == [], "its rate alone is known"
    (user.home / "stop").touch()
    user.finish(job_id)
    (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
    assert [member["sm_share"] for member in summary["members"]] == [None, None]
    assert (
        "SM activity is unknown (the GPU has no GPM): so are the members' shares of it"
        in (summary["notes"])
    )


# It numbers GPUs its own way.
DCGMI = """\
#!/bin/sh
[ "$1" = discovery ] && exec cat {discovery}
echo "#Entity   GRACT        SMACT        TENSO        DRAMA"
echo "ID"
while
    echo "GPU 7     0.400        0.200        0.050        0.060" &&
    echo "GPU 8     0.400        0.200        0.050        0.060"
do sleep 1; done
"""


def test_with_dcgm_the_activity_is_known_and_packs_are_predicted(user: CsubUser) -> None:
    write_settings(user, activity_source="dcgm")
    uuids = re.findall(r"GPU-[0-9a-f-]{36}", user.run(["simgpu", "status"]).stdout)
    assert len(uuids) == 2
    discovery = user.home / "discovery"
    lines = [f"| {n}      | Name: A100 |\n|  | Device UUID: {u} |" for n, u in enumerate(uuids, 7)]
    discovery.write_text("\n".join(lines) + "\n")
    folder = user.home / "bin"
    folder.mkdir()
    program = folder / "dcgmi"
    program.write_text(DCGMI.format(discovery=discovery))
    program.chmod(0o755)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    profile = run_alone(user)
    assert [profile[name] for name in ACTIVITY] == pytest.approx([0.2, 0.06, 0.05, 0.4])
    two = ("pack", "train.sh", "train.sh")
    (pack,) = json.loads(user.csub("plan", "--json", *OPTIONS, *two).stdout)["packs"]
    assert pack["known"] is True
    assert all(member["slowdown"] >= 1 for member in pack["members"])
