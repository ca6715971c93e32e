"""A partition that gives whole nodes: a call is one Slurm job that fills all GPUs of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from slurm_colloc.sandbox.cluster import Sandbox

from .conftest import CsubUser, running_sandbox, user_of

pytestmark = pytest.mark.slurm

EACH = ("--partition=whole", "--gres=gpu:1", "--cpus-per-task=2", "--mem=50M", "--time=10",
        "--share=timeslice")  # fmt: skip


@pytest.fixture(scope="module")
def node() -> Iterator[Sandbox]:
    """A node with eight GPUs."""
    with running_sandbox(nodes=1, gpus_per_node=8, cpus_per_node=96) as sandbox:
        yield sandbox


@pytest.fixture
def user(node: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(node, accounts[0]) as somebody:
        yield somebody


def test_forty_trainings_are_one_job_on_all_eight_gpus(user: CsubUser) -> None:
    user.script("train.sh", 'sleep 1; echo "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES" >> ran')
    job_id = user.csub(
        "sweep", "--parsable", *EACH, "train.sh", "--lr", "0.1,0.2,0.3,0.4", "--seed", "0:10"
    ).stdout.strip()
    assert "TresPerNode=gres:gpu:8" in user.run(["scontrol", "show", "job", job_id]).stdout
    assert user.run(["squeue", "-h", "--me", "-o", "%i"]).stdout.split() == [job_id]
    rows = user.finish(job_id)
    assert Counter(row["state"] for row in rows.values()) == {"COMPLETED": 40}
    ran = [line.split() for line in user.output("ran").splitlines()]
    assert len(ran) == 40
    # No other job has had a part in it, and no GPU was left out.
    assert {job for job, _ in ran} == {job_id}
    assert len({gpu for _, gpu in ran}) == 8


def test_the_plan_shows_the_node_as_it_is_filled(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")
    shown = user.csub("plan", *EACH, "--array=1-10", "train.sh").stdout
    assert "10 jobs in 1 pack with 8 GPUs" in shown
    table = shown.partition("BEGINS WITH")[2].splitlines()[1:9]
    assert [line.split()[:2] for line in table] == [
        ["1", "1,9"], ["2", "2,10"], *([str(gpu), str(gpu)] for gpu in range(3, 9))
    ]  # fmt: skip
    assert "Nothing was submitted." in shown
