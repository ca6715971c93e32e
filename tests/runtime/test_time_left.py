"""For whom too little of the pack's time is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.member import RESUBMISSIONS, WaitKind, WaitReason
from slurm_colloc.runtime.room import END_MARGIN_S, TimeLeft
from slurm_colloc.store.member_states import write_held

from .stepped_runner import SteppedRunner

LIMIT_S = 100
NEEDED_S = 60


class Clock:
    """Seconds since the pack began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def limit(seconds: int | None, requeue: bool | None = None) -> Callable[[Job], Job]:
    return lambda job: dataclasses.replace(job, time_limit_s=seconds, requeue=requeue)


def build_time_left(
    bed: SteppedRunner, clock: Clock, *, site_requeues: bool = True, **record: object
) -> TimeLeft:
    changed = dataclasses.replace(bed.record, **record)  # type: ignore[arg-type]
    pack = dataclasses.replace(bed.context, record=changed, clock=clock)
    return TimeLeft(pack=pack, site_requeues=site_requeues)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("passed_s", "short"),
    [(0, False), (40, False), (40.5, True), (99, True), (100, False), (150, False)],
)
def test_a_member_does_not_start_that_would_be_ended_half_way(
    build_bed: Callable[..., SteppedRunner], clock: Clock, passed_s: float, short: bool
) -> None:
    bed = build_bed(change=limit(NEEDED_S), time_limit_s=LIMIT_S)
    bed.run_member(1)
    (member,) = bed.adopt(2)
    time_left = build_time_left(bed, clock)
    clock.now = passed_s
    assert time_left.left_s == LIMIT_S - passed_s
    # Beyond its limit somebody has given the pack more time.
    assert time_left.is_too_short_for(member) is short


@pytest.mark.parametrize(
    ("job", "site", "record"),
    [
        # Nobody would submit it again.
        ((NEEDED_S, False), True, {}),
        ((NEEDED_S, None), False, {}),
        ((NEEDED_S, None), True, {"local": True}),
        ((NEEDED_S, None), True, {"resubmissions": RESUBMISSIONS}),
        # It is not known how long it takes, or how long the pack may.
        ((None, None), True, {}),
        ((NEEDED_S, None), True, {"request": None}),
        # Another pack would have no more time for it.
        ((int(LIMIT_S - END_MARGIN_S) + 1, None), True, {}),
    ],
)
def test_who_would_not_be_better_off_elsewhere_starts_all_the_same(
    build_bed: Callable[..., SteppedRunner],
    clock: Clock,
    job: tuple[int | None, bool | None],
    site: bool,
    record: dict[str, object],
) -> None:
    bed = build_bed(change=limit(*job), time_limit_s=LIMIT_S)
    bed.run_member(1)
    (member,) = bed.adopt(2)
    time_left = build_time_left(bed, clock, site_requeues=site, **record)
    clock.now = 90
    assert not time_left.is_too_short_for(member)


def test_requeue_of_the_job_goes_before_what_the_site_does(
    build_bed: Callable[..., SteppedRunner], clock: Clock
) -> None:
    bed = build_bed(change=limit(NEEDED_S, True), time_limit_s=LIMIT_S)
    bed.run_member(1)
    (member,) = bed.adopt(2)
    time_left = build_time_left(bed, clock, site_requeues=False)
    clock.now = 90
    assert time_left.is_too_short_for(member)


def test_no_pack_hands_back_all_that_it_was_given(
    build_bed: Callable[..., SteppedRunner], clock: Clock
) -> None:
    bed = build_bed(change=limit(NEEDED_S), time_limit_s=LIMIT_S)
    (member,) = bed.adopt(1)
    time_left = build_time_left(bed, clock)
    clock.now = 90
    assert not time_left.is_too_short_for(member)
    bed.run_member(2)
    assert time_left.is_too_short_for(member)


def test_who_has_run_before_or_is_held_is_not_handed_back(
    build_bed: Callable[..., SteppedRunner], clock: Clock
) -> None:
    bed = build_bed(change=limit(NEEDED_S), time_limit_s=LIMIT_S)
    bed.run_member(1)
    again, held = bed.adopt(2, 3)
    again.record = dataclasses.replace(again.record, starts=1)
    write_held(bed.pack, 3)
    time_left = build_time_left(bed, clock)
    clock.now = 90
    assert not time_left.is_too_short_for(again)
    assert not time_left.is_too_short_for(held)


def test_why_it_waits_is_told_as_it_was_first(
    build_bed: Callable[..., SteppedRunner], clock: Clock
) -> None:
    bed = build_bed(change=limit(NEEDED_S), time_limit_s=LIMIT_S)
    bed.run_member(1)
    (member,) = bed.adopt(2)
    time_left = build_time_left(bed, clock)
    assert time_left.describe(member) is None
    clock.now = 70
    reason = time_left.describe(member)
    assert reason == WaitReason(WaitKind.TIME, left_s=30, limit_s=60)
    member.record = dataclasses.replace(member.record, waits=reason)
    clock.now = 80
    assert time_left.describe(member) == reason
