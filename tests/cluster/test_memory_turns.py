"""Members that need more GPU memory than there is take turns, on a real Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import explained, journal, runner_pid
from .test_measured_packs import why

pytestmark = [pytest.mark.slurm, pytest.mark.long]

STEPS = 400
# Two are more than the 40 GB of an A100.
OPTIONS = (
    "--take-turns=4", "--gpu-mem=20G", "--gres=gpu:1", "-c1", "--mem=1G", "--time=30",
)  # fmt: skip
TRAIN = f"exec simgpu run --gpu-memory 20000M --rate 20 --report --steps {STEPS}"


@pytest.fixture(scope="module")
def small_gpu_cluster() -> Iterator[Sandbox]:
    with running_sandbox(
        simgpu=True, nodes=1, gpu_type="a100", host_memory_mb_per_node=200_000
    ) as sandbox:
        yield sandbox


@pytest.fixture
def user(small_gpu_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(small_gpu_cluster, accounts[0]) as somebody:
        yield somebody


def wait_until_one_is_parked(user: CsubUser, job_id: str) -> str:
    def find() -> str:
        rows = user.members(job_id)
        names = (f"{job_id}/{n}" for n, row in rows.items() if row["state"] == "RUNNING")
        return next((name for name in names if "moved to host memory" in why(user, name)), "")

    with explained(user, job_id):
        return str(wait_until(find, "one is parked", patience_s=120))


def test_three_of_20_gb_take_turns_on_40_gb_and_all_make_every_step(user: CsubUser) -> None:
    user.script("train.sh", TRAIN)
    job_id = user.submit("--array=1-3", *OPTIONS, "train.sh")
    name = wait_until_one_is_parked(user, job_id)
    assert "parked, 20.0 GB moved to host memory until its turn" in why(user, name)
    with explained(user, job_id):
        rows = user.finish(job_id, patience_s=240)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert len(rows) == 3
        moves = journal(user, job_id, "moved_gpu_memory")
        assert all(not move["reason"] for move in moves)
        away = {move["member"] for move in moves if move["now"] == "away"}
        assert away == {1, 2, 3}
    steps = [f"step {number} " for number in (1, STEPS)]
    for number in (1, 2, 3):
        lines = (user.home / f"slurm-{job_id}_{number}.out").read_text().splitlines()
        assert lines[0].startswith("step ")
        assert lines[-1].startswith(steps[1])
        seen = [int(line.split()[1]) for line in lines]
        assert seen == sorted(set(seen))


def test_a_parked_one_that_is_cancelled_ends_and_the_others_go_on(user: CsubUser) -> None:
    user.script("train.sh", TRAIN)
    job_id = user.submit("--array=1-2", *OPTIONS, "train.sh")
    name = wait_until_one_is_parked(user, job_id)
    user.csub("cancel", name)
    rows = user.finish(job_id, patience_s=240)
    states = {f"{job_id}/{number}": row["state"] for number, row in rows.items()}
    assert states.pop(name) == "CANCELLED"
    assert set(states.values()) == {"COMPLETED"}


def test_a_driver_that_cannot_leaves_all_as_without_the_option(user: CsubUser) -> None:
    administrate(user, "simgpu", "faults", "fail=cuCheckpointProcessCheckpoint:801")
    try:
        user.script("train.sh", TRAIN)
        job_id = user.submit("--array=1-2", *OPTIONS, "train.sh")

        def is_kept() -> bool:
            told = "keeps its GPU memory when its turn ends: cuCheckpointProcessCheckpoint"
            return told in why(user, f"{job_id}/1")

        with explained(user, job_id):
            wait_until(is_kept, "it keeps its memory", patience_s=120)
            rows = user.finish(job_id, patience_s=240)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    finally:
        administrate(user, "simgpu", "faults")


def test_after_a_killed_runner_none_stays_checkpointed(user: CsubUser) -> None:
    user.script("train.sh", TRAIN, directives="#SBATCH --no-requeue")
    job_id = user.submit("--array=1-2", *OPTIONS, "train.sh")
    wait_until_one_is_parked(user, job_id)
    os.kill(runner_pid(user, job_id), signal.SIGKILL)
    # What is not requeued runs to its end: the parked one once the other has ended.
    outputs = [user.home / f"slurm-{job_id}_{number}.out" for number in (1, 2)]
    with explained(user, job_id):
        wait_until(
            lambda: all(f"step {STEPS} " in path.read_text() for path in outputs),
            "both have made all steps",
            patience_s=180,
        )
