"""A ramp that was recorded on an H200 of an uneven host, looked at again."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import pytest

from slurm_colloc.model.degree.ramp_decision import Decision, RampOutlook, RampState
from slurm_colloc.model.degree.ramp_look import Measured, Sight
from slurm_colloc.model.degree.ramp_rules import Ramp
from slurm_colloc.model.degree.ramp_window import LookHistory

RECORDED = Path(__file__).parents[1] / "recordings" / "h200" / "uneven-seven.csv"
SOLO_STEPS_PER_S = 114.7
OTHERS_START_S = 44.0
PLACES = 12
ROOM = 7
WARM_UP_STEPS, WARM_UP_S = 15, 3.0
"""What a training does before the first step that it writes down."""

Series = dict[int, list[tuple[float, int]]]


@pytest.fixture(scope="module")
def series() -> Series:
    """For each member when it had made so many steps."""
    found: Series = defaultdict(list)
    with RECORDED.open() as file:
        for row in csv.DictReader(file):
            point = (float(row["at"]), int(row["steps"]) + WARM_UP_STEPS)
            found[int(row["member"])].append(point)
    for points in found.values():
        points.insert(0, (points[0][0] - WARM_UP_S, 1))
    return found


def look(series: Series, at: float) -> list[Sight]:
    """The members that run, as the runner saw them."""
    sights = []
    for number, points in series.items():
        if number > 1 and at < OTHERS_START_S:
            continue
        count = bisect_right(points, at, key=lambda point: point[0])
        last = points[count - 1] if count else None
        sights.append(
            Sight(
                number=number,
                start=1,
                steps=last[1] if last else None,
                last_step_at=last[0] if last else None,
                solo_steps_per_s=SOLO_STEPS_PER_S,
                bound=1.5,
                kind="small",
                is_wide=number == 1,
            )
        )
    return sights


def replay(series: Series, first_look_at: float) -> list[Decision]:
    """What a ramp decides as long as the recorded members run."""
    ramp = Ramp(PLACES, 1)
    decisions = []
    at = first_look_at
    while at < series[1][-1][0]:
        sights = look(series, at)
        waiting = PLACES - len(sights) if at >= OTHERS_START_S - 2.0 else 0
        decision = ramp.look(at, sights, RampOutlook(waiting=waiting, room=ROOM))
        if decision is not None:
            decisions.append(decision)
        at += 2.0
    return decisions


@pytest.mark.parametrize("first_look_at", [1.0 + tenths / 10 for tenths in range(0, 20, 2)])
def test_single_members_of_an_uneven_host_end_no_ramp(series: Series, first_look_at: float) -> None:
    decisions = replay(series, first_look_at)

    assert [decision.running for decision in decisions] == [1, 7]
    assert {decision.state for decision in decisions} == {RampState.RAMPING}
    assert decisions[-1].target > 7, decisions[-1].reason


def measure_all(series: Series, least_s: float) -> list[Measured]:
    track = LookHistory()
    found = []
    at = OTHERS_START_S
    while at < series[1][-1][0]:
        track.add(at, look(series, at))
        measured = track.measure(least_s)
        if measured is not None:
            found.append(measured)
        at += 1.0
    return found


def test_short_windows_show_single_members_beyond_a_bound_that_all_alike_keep(
    series: Series,
) -> None:
    alike = range(2, 8)
    short = measure_all(series, 5.0)
    long = measure_all(series, 30.0)

    assert any(each.singly and max(each.singly[n] for n in alike) > 1.5 for each in short)
    assert all(max(each.slowdowns[n] for n in alike) < 1.4 for each in short)
    assert long
    assert all(each.singly is None for each in long)
    assert all(max(each.slowdowns.values()) < 1.4 for each in long)
