"""A GPU that is 1.5 times slower is seen by the packs that ran on it, told of, and left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import list_nodes

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import explained, simulation_of

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "-c1", "--mem=1100M", "--time=10", "--join=never", "--open=never")
TRAIN = """\
import subprocess
from slurm_colloc import progress

use = subprocess.Popen(
    ["simgpu", "run", "--seconds=36", "--gpu-memory=1G", "--sm=30", "--rate=20", "--report"],
    stdout=subprocess.PIPE, text=True,
)
done = 0
for line in use.stdout:
    steps = int(line.split()[1])
    progress.step(samples=8 * (steps - done), steps=steps - done)
    done = steps
"""


@pytest.fixture(scope="module")
def uneven_cluster() -> Iterator[Sandbox]:
    """Three nodes with simulated GPUs."""
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with running_sandbox(nodes=3, gpus_per_node=1, cpus_per_node=8, simgpu=True) as sandbox:
        yield sandbox


@pytest.fixture
def user(uneven_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(uneven_cluster, accounts[0]) as somebody:
        (somebody.home / "train.py").write_text(TRAIN)
        somebody.script("train.sh", 'exec python3 "$HOME/train.py"')
        yield somebody


def test_a_slow_gpu_is_seen_told_and_left_out(user: CsubUser, uneven_cluster: Sandbox) -> None:
    simulation = simulation_of(uneven_cluster)
    slow, *others = list_nodes(simulation)
    uuids = [gpu.uuid for gpu in slow.read_gpus()]
    faults = simulation / "faults"
    faults.write_text("".join(f"paced={uuid}:0.667 " for uuid in uuids))
    try:
        rest = [user.submit(f"--nodelist={n.name}", *OPTIONS, "train.sh") for n in others]
        for _ in range(3):
            job_id = user.submit(f"--nodelist={slow.name}", *OPTIONS, "train.sh")
            with explained(user, job_id):
                user.finish(job_id)
        for other in rest:
            user.finish(other)

        def is_known() -> bool:
            # What a pack had no time for at its end, the next call does.
            user.csub("plan", *OPTIONS, "train.sh")
            return any(pace.is_slow for pace in read_paces(user.state))

        wait_until(is_known, "the slow GPU is known", patience_s=60)
        paces = {pace.uuid: pace for pace in read_paces(user.state)}
        found = [pace for pace in paces.values() if pace.is_slow]
        assert [pace.node for pace in found] == [slow.name]
        assert 0.6 < (found[0].rate or 0.0) < 0.75
        told = found[0].describe()
        assert f"{found[0].uuid} ({slow.name}) made 0.6" in told
        asked = json.loads(user.csub("doctor", "--no-job", "--json", check=False).stdout)
        assert [one["what"] for one in asked["findings"] if one["check"] == "gpus"] == [told]
        assert told in " ".join(user.csub("why", job_id).stdout.split())
        assert told in " ".join(user.csub("report", job_id).stdout.split())
        # What is known of the job is what it makes on a GPU that is not slow.
        (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
        assert profile["steps_per_s"]["last"] == pytest.approx(20.0, rel=0.1)
        away = user.csub("--parsable", "--avoid-slow", *OPTIONS, "--array=1-4", "train.sh")
        assert f"{slow.name} is left out (--exclude)" in away.stderr
        job_id = away.stdout.strip()
        fields = user.run(["scontrol", "show", "job", job_id]).stdout
        assert f"ExcNodeList={slow.name}" in fields
        user.csub("cancel", job_id)
    finally:
        faults.write_text("")
