"""A pack that is measured as members are added asks for some time on top, none of it a member's."""

from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.degree.ramp_decision import STAGE_S
from slurm_colloc.model.plan import PackPlan, SharingMode
from slurm_colloc.planning.job_needs import Need
from slurm_colloc.planning.pack_request import RAMP_MOST_S, Prediction, build_pack

from .known_jobs import POLICY, ROOMY, build_job

WALL_S = 1800
"""A member's time, 1200 s, stretched by the bound of 1.5."""
MARGIN_S = POLICY.start_margin_s


def predict(
    members: int,
    *,
    rate: float | None = 10.0,
    is_borrowed: bool = False,
    may_probe: bool = False,
) -> Prediction:
    return Prediction(
        degree=members, mode=SharingMode.MPS, percentages=(None,) * members,
        slowdowns=(1.1,) * members, solo_steps_per_s=(rate,) * members, finish_s=None,
        is_borrowed=is_borrowed, may_probe=may_probe,
    )  # fmt: skip


def build(
    members: int,
    prediction: Prediction | None = None,
    *,
    probe_s: int = 0,
    host_memory_mb: int = 2000,
    most_s: int | None = None,
) -> tuple[int | None, int | None, PackPlan]:
    """A pack whose members all run at once: its time limit, and the first one's."""
    jobs = [build_job(number) for number in range(1, members + 1)]
    needs = [Need(index, 1, host_memory_mb, 1000, 1200, None) for index in range(members)]
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=most_s)
    policy = dataclasses.replace(POLICY, degree=members, probe_s=probe_s)
    pack = build_pack(jobs, needs, capacity, policy, "", prediction=prediction)
    assert pack.request is not None
    return pack.request.time_limit_s, pack.members[0].wall_limit_s, pack


@pytest.mark.parametrize(
    ("members", "later", "prediction"),
    [
        (2, 1, predict(2, is_borrowed=True)),
        (3, 2, predict(3, may_probe=True)),
        (6, 4, predict(6, is_borrowed=True)),
        (12, 8, predict(12, is_borrowed=True)),
        # Who is known starts at once.
        (4, 0, predict(4)),
        # Without a rate alone nothing can be measured.
        (4, 0, predict(4, rate=None, is_borrowed=True)),
        (4, 0, None),
    ],
)
def test_each_that_starts_later_adds_a_stage(
    members: int, later: int, prediction: Prediction | None
) -> None:
    limit_s, wall_s, pack = build(members, prediction)
    assert pack.start_degree == (members - later if later else None)
    assert wall_s == WALL_S
    assert limit_s == WALL_S + MARGIN_S + min(RAMP_MOST_S, later * STAGE_S)


def test_unknown_ones_have_it_beside_the_time_for_the_probe() -> None:
    limit_s, wall_s, pack = build(3, probe_s=200)
    assert (pack.start_degree, wall_s) == (1, WALL_S)
    assert limit_s == WALL_S + MARGIN_S + 200 + 2 * STAGE_S


def test_what_is_not_watched_is_not_measured() -> None:
    limit_s, _, _ = build(2, predict(2, is_borrowed=True), host_memory_mb=100)
    assert limit_s == WALL_S + MARGIN_S


@pytest.mark.parametrize("room_s", [0, 10, 200])
def test_near_max_time_there_is_less_of_it(room_s: int) -> None:
    most_s = WALL_S + MARGIN_S + room_s
    limit_s, wall_s, pack = build(6, predict(6, is_borrowed=True), most_s=most_s)
    assert limit_s == WALL_S + MARGIN_S + min(room_s, 4 * STAGE_S)
    assert wall_s == WALL_S
    assert not any("MaxTime" in reason for reason in pack.reasons)


def test_beyond_max_time_no_member_has_less_for_it() -> None:
    most_s = WALL_S + MARGIN_S - 100
    borrowed = build(6, predict(6, is_borrowed=True), most_s=most_s)
    known = build(6, predict(6), most_s=most_s)
    assert borrowed[:2] == known[:2] == (most_s, WALL_S - 100)
