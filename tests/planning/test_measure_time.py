"""A pack of unknown jobs asks for time to be measured, none of which is a member's."""

from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.plan import PackPlan, SharingMode
from slurm_colloc.planning.job_needs import Need
from slurm_colloc.planning.pack_request import Prediction, build_pack

from .known_jobs import POLICY, ROOMY, build_job

WALL_S = 1800
"""A member's time, 1200 s, stretched by the bound of 1.5."""
MARGIN_S = POLICY.start_margin_s


def predict(members: int, *, may_probe: bool = False, is_borrowed: bool = False) -> Prediction:
    return Prediction(
        degree=members, mode=SharingMode.MPS, percentages=(None,) * members,
        slowdowns=(1.1,) * members, solo_steps_per_s=(10.0,) * members, finish_s=None,
        is_borrowed=is_borrowed, may_probe=may_probe,
    )  # fmt: skip


def build(
    members: int,
    prediction: Prediction | None = None,
    *,
    measure_s: int = 60,
    host_memory_mb: int = 2000,
    most_s: int | None = None,
) -> tuple[int | None, int | None, PackPlan]:
    """A pack whose members all run at once: its time limit, and the first one's."""
    jobs = [build_job(number) for number in range(1, members + 1)]
    needs = [Need(index, 1, host_memory_mb, 1000, 1200, None) for index in range(members)]
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=most_s)
    policy = dataclasses.replace(POLICY, degree=members, measure_s=measure_s)
    pack = build_pack(jobs, needs, capacity, policy, "", prediction=prediction)
    assert pack.request is not None
    return pack.request.time_limit_s, pack.members[0].wall_limit_s, pack


@pytest.mark.parametrize(
    ("members", "prediction", "more_s"),
    [
        (3, None, 60),
        (3, predict(3, may_probe=True), 60),
        # Known ones are corrected as they run.
        (12, predict(12, is_borrowed=True), 0),
        (4, predict(4), 0),
        # One alone is not measured.
        (1, None, 0),
    ],
)
def test_unknown_jobs_have_time_to_be_measured(
    members: int, prediction: Prediction | None, more_s: int
) -> None:
    limit_s, wall_s, pack = build(members, prediction)
    stretched_s = WALL_S if pack.degree > 1 else 1200
    assert wall_s == stretched_s
    assert limit_s == stretched_s + MARGIN_S + more_s


def test_what_is_not_watched_is_not_measured() -> None:
    limit_s, _, _ = build(2, host_memory_mb=100)
    assert limit_s == WALL_S + MARGIN_S


def test_near_max_time_the_pack_asks_for_that() -> None:
    most_s = WALL_S + MARGIN_S
    limit_s, wall_s, _ = build(3, most_s=most_s)
    assert (limit_s, wall_s) == (most_s, most_s - MARGIN_S - 60)
