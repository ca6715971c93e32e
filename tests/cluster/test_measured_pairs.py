"""Trainings of two GPUs share them when, and only when, it was measured to pay."""

from __future__ import annotations

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import explained
from .test_measured_packs import TRAIN, find_state, wait_for_decision

pytestmark = pytest.mark.slurm

PAIRS = ("--share=timeslice", "--gres=gpu:2", "-c1", "--mem=700M", "--time=30")


@pytest.mark.long
@pytest.mark.parametrize(("sm", "degree"), [(8, 2), (100, 1)])
def test_two_pairs_share_two_gpus_where_that_pays(mps_user: CsubUser, sm: int, degree: int) -> None:
    user = mps_user
    stop = user.home / "stop"
    (user.home / "train.py").write_text(
        TRAIN.replace('"run", ', '"run", "--gpus=2", "--nvlink=500", ')
    )
    user.script("pair.sh", f'exec python3 "$HOME/train.py" {sm} {stop}')
    words = ("--gpus-per-pack=2", "--gpu-mem=2G", "--max-slowdown=1.3", "pair.sh", "pair.sh")
    job_id = user.submit("pack", *PAIRS, *words)
    record = wait_for_decision(user, job_id)
    assert record["degree"] == degree
    assert record["parked"] == ([] if degree == 2 else [2])
    rows = user.members(job_id)
    assert all(len(row["gpu_uuids"]) == 2 for row in rows.values())
    if degree == 1:
        # As one: it is stopped on both of its GPUs, and goes on on both.
        assert find_state(user, job_id, 2) == "T"
        (user.home / f"stop.{job_id}.1").touch()
        user.wait_for_states(job_id, {1: "COMPLETED"})
        wait_until(lambda: find_state(user, job_id, 2) in "SR", "the second goes on")
    stop.touch()
    with explained(user, job_id):
        rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    report = user.csub("report", job_id).stdout
    assert "all 2" in report
