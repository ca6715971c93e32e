"""How many run at once by a curve that earlier packs have measured, and the packs made by it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.measured_curve import FamilyRate, KnownCurve, KnownPoint
from slurm_colloc.model.plan import (
    Capacity,
    Goal,
    KnownBy,
    Plan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.planning.known_degree import find_degree
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation

from .known_jobs import CALIBRATION, H200, build_job

NOON = time.mktime((2026, 11, 27, 12, 0, 0, 0, 0, -1))
CAPACITY = Capacity(cpus_per_gpu=16, host_memory_mb_per_gpu=128_000, gpu_memory_mb=80_000)
CV, GNN = "c" * 32, "9" * 32

# Twelve ResNet-26 on an H100: 11 at once made 8.4 times the progress of one alone.
TWELVE = ((6, 5.1, 1.2), (12, 8.4, 1.45))


def build_curve(
    points: Sequence[tuple[int, float, float | None]] = TWELVE,
    families: tuple[str, ...] = (CV,),
    **changes: object,
) -> KnownCurve:
    rates = tuple(FamilyRate(family, 90.0) for family in families)
    known = tuple(KnownPoint(degree, stp, slow, NOON) for degree, stp, slow in points)
    curve = KnownCurve(families, H200, SharingMode.MPS, known, rates, ("cv.sh",), ("a/1",))
    return dataclasses.replace(curve, **changes)  # type: ignore[arg-type]


def build_company(family: str = CV, **changes: object) -> UsageProfile:
    """A job that only ever ran in company: its SM activity is unknown."""
    profile = UsageProfile(
        gpu_memory_peak_mb=1006,
        host_memory_peak_mb=1500,
        steps_per_s=90.0,
        known_by=KnownBy.FAMILY,
        gpu_model=H200,
        family=family,
    )
    return dataclasses.replace(profile, **changes)  # type: ignore[arg-type]


def make(
    jobs: int | Sequence[Job],
    profiles: Sequence[UsageProfile] = (),
    curves: Sequence[KnownCurve] = (build_curve(),),
    *,
    capacity: Capacity = CAPACITY,
    policy: Policy = Policy(),  # noqa: B008
) -> Plan:
    if isinstance(jobs, int):
        jobs = [build_job(n, cpus=1, host_memory_mb=1000) for n in range(1, jobs + 1)]
    known = dict(enumerate(profiles or [build_company()] * len(jobs)))
    return plan(jobs, known, capacity, policy, CALIBRATION, curves=curves)


def test_all_twelve_start_in_one_pack_as_the_last_pack_has_measured() -> None:
    (pack,) = make(12).packs
    assert (len(pack.members), pack.degree, pack.mode) == (12, 12, SharingMode.MPS)
    assert {member.solo_steps_per_s for member in pack.members} == {90.0}
    assert {member.gpu_memory_limit_mb for member in pack.members} == {1208 + 1024}
    # As in the pack that measured it, the node says what part of the GPU each gets.
    assert {member.thread_percentage for member in pack.members} == {None}
    told = "12 at once made 8.4 times the progress of one alone on 2026-11-27 (1 run)"
    assert told in pack.reasons
    # Nothing has to be measured first.
    plain = make(12, policy=Policy(measure_s=60)).packs[0].request
    assert plain == pack.request


def test_without_the_curve_they_are_packs_of_the_degree() -> None:
    assert [len(pack.members) for pack in make(12, curves=()).packs] == [4, 4, 4]


@pytest.mark.parametrize(
    ("capacity", "most"),
    [
        (dataclasses.replace(CAPACITY, cpus_per_gpu=8), 8),
        (dataclasses.replace(CAPACITY, host_memory_mb_per_gpu=9_500), 9),
        (dataclasses.replace(CAPACITY, gpu_memory_mb=12_000), 5),
    ],
)
def test_what_the_gpu_s_share_allows_limits_it(capacity: Capacity, most: int) -> None:
    packs = make(12, capacity=capacity).packs
    assert max(len(pack.members) for pack in packs) == most
    assert sum(len(pack.members) for pack in packs) == 12


def test_host_memory_that_was_not_asked_for_is_divided_as_far_as_it_was_seen_to_go() -> None:
    jobs = [build_job(n, cpus=1) for n in range(1, 13)]
    (pack,) = make(jobs).packs
    assert {member.host_memory_mb for member in pack.members} == {128_000 // 12}
    # 1,500 MB were seen, so each may need 2,506.
    narrow = dataclasses.replace(CAPACITY, host_memory_mb_per_gpu=16_000)
    packs = make(jobs, capacity=narrow).packs
    assert max(len(pack.members) for pack in packs) == 6


def test_the_rest_is_in_further_packs_of_that_degree() -> None:
    curve = build_curve(((6, 5.1, 1.2), (12, 8.4, 1.45), (16, 7.0, 2.4)))
    packs = make(30, curves=[curve]).packs
    assert [len(pack.members) for pack in packs] == [12, 12, 6]
    assert {pack.degree for pack in packs} == {12}


def test_beyond_what_was_measured_there_may_be_room() -> None:
    packs = make(30).packs
    assert [len(pack.members) for pack in packs] == [12, 12, 6]
    assert {pack.degree for pack in packs} == {16}


def test_those_that_make_no_more_together_run_alone() -> None:
    curve = build_curve(((2, 0.98, 2.1), (3, 0.97, 3.2)))
    packs = make(3, curves=[curve]).packs
    assert [len(pack.members) for pack in packs] == [1, 1, 1]
    assert "2 were up to 2.10 times slower than alone" in packs[0].reasons[0]


def test_of_a_mix_only_the_exact_set_of_kinds_tells() -> None:
    mix = build_curve(((5, 4.0, 1.3), (10, 6.9, 1.5)), tuple(sorted((CV, GNN))))
    profiles = [build_company(CV), build_company(GNN)] * 5
    (pack,) = make(10, profiles, [mix]).packs
    assert len(pack.members) == 10
    # Each by itself where the mix is unknown, if there are enough of it.
    packs = make(10, profiles, [build_curve(), build_curve(families=(GNN,))]).packs
    assert [len(pack.members) for pack in packs] == [5, 5]
    few = [build_company(CV), build_company(GNN)]
    (pack,) = make(2, few, [build_curve(), build_curve(families=(GNN,))]).packs
    assert len(pack.members) == 2, "nothing is known of them together: they are measured"
    assert [len(p.members) for p in make(10, [build_company(CV)] * 10, [mix]).packs] == [4, 4, 2]


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": Policy(degree=3, degree_is_asked=True)},
        {"policy": Policy(pack_size=3, degree=3)},
        {"policy": Policy(mode=SharingMode.TIMESLICE, degree=3)},
        {"policy": Policy(goal=Goal.ENERGY, degree=3)},
        {"profiles": [build_company("")] * 12, "policy": Policy(degree=3)},
        {"profiles": [build_company(steps_per_s=20.0)] * 12, "policy": Policy(degree=3)},
        {"profiles": [build_company(gpu_memory_peak_mb=None)] * 12, "policy": Policy(degree=3)},
    ],
)
def test_a_curve_of_something_else_or_that_was_not_asked_for_counts_not(
    changed: dict[str, object],
) -> None:
    packs = make(12, **changed).packs  # type: ignore[arg-type]
    assert {len(pack.members) for pack in packs} == {3}


def test_why_two_are_apart_is_told_by_the_curve() -> None:
    curve = build_curve(((6, 5.1, 1.2), (12, 8.4, 1.45), (16, 7.0, 2.4)))
    jobs = [build_job(n, cpus=1, host_memory_mb=1000, name="cv.sh") for n in range(1, 15)]
    known = dict.fromkeys(range(14), build_company())
    made = plan(jobs, known, CAPACITY, Policy(), CALIBRATION, curves=[curve])
    (pair,) = build_explanation(
        made, jobs, known, CAPACITY, Policy(), CALIBRATION, curves=[curve]
    ).pairs
    assert pair.text == "13 would run at once, 12 may"


@pytest.mark.parametrize(
    ("points", "bound", "count", "degree"),
    [
        (TWELVE, 1.5, 12, 12),
        (TWELVE, 3.0, 5, 12),
        # On the line from 1.2 at 6 to 1.45 at 12.
        (TWELVE, 1.35, 12, 9),
        (TWELVE, 1.1, 12, 3),
        (TWELVE, 1.0, 12, 1),
        (((4, 3.9, None),), 1.5, 4, 4),
        (((4, 3.9, None),), 1.02, 4, 3),
        # 11 and then 1 would end later than 12 at once.
        (((6, 5.0, 1.2), (11, 8.4, 1.31)), 1.5, 12, 12),
        (((6, 5.0, 1.2), (11, 8.4, 1.31)), 1.35, 12, 11),
        (((2, 1.9, 1.1), (4, 1.91, 2.2)), 3.0, 2, 2),
    ],
)
def test_the_degree_keeps_the_bound(
    points: Sequence[tuple[int, float, float | None]], bound: float, count: int, degree: int
) -> None:
    found = find_degree([build_curve(points)], {CV: count}, bound)
    assert found is not None
    assert found.degree == degree


@given(
    st.dictionaries(
        st.integers(2, 48), st.tuples(st.floats(0.1, 48), st.floats(1, 50)), min_size=1, max_size=6
    ),
    st.floats(1, 10),
    st.integers(1, 60),
)
def test_any_curve_gives_a_degree_that_was_measured_or_lies_next_to_it(
    measured: dict[int, tuple[float, float]], bound: float, count: int
) -> None:
    points = [(degree, stp, slow) for degree, (stp, slow) in sorted(measured.items())]
    found = find_degree([build_curve(points)], {CV: count}, bound)
    assert found is not None
    assert 1 <= found.degree <= max(*measured, count)
    slow_from = min((d for d, _, slow in points if slow > bound), default=None)
    assert slow_from is None or found.degree < slow_from
    assert "times the progress of one alone" in found.describe()


def test_nothing_is_known_of_others() -> None:
    curve = build_curve()
    assert find_degree([curve], {GNN: 2}, 1.5) is None
    assert find_degree([curve], {CV: 2, GNN: 2}, 1.5) is None
    assert find_degree([], {CV: 2}, 1.5) is None
    assert find_degree([curve], {CV: 2}, 1.5, {CV: 140.0}) is None
    assert find_degree([curve], {CV: 2}, 1.5, {CV: 75.0}) is not None
