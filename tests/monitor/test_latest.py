"""Rates, and when they are steady, from counters as they are read."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_colloc.monitor.latest_figures import (
    LatestFigures,
    Point,
    compute_rate,
    find_window,
    is_steady,
)


def make_rows(rate: float, seconds: int, *, first: float = 2.0, until: float = 1e9) -> list[Any]:
    """One row a second of a member that steps evenly from its first step on."""
    rows = []
    for second in range(seconds):
        at = 1000.0 + second
        steps = max(0, int((min(at, until) - 1000 - first) * rate) + 1) if second >= first else None
        last = None if not steps else 1000 + first + (steps - 1) / rate
        rows.append(
            {
                "at": at,
                "member": 3,
                "start": 1,
                "cpu_s": 2.0 * second,
                "steps": steps,
                "samples": None if steps is None else steps * 64,
                "wait_s": 0.5 * second,
                "last_step_at": last,
                "first_step_at": last and 1000 + first,
                "trainers": 2,
                "host_memory_mb": 5.0,
                "progress": "optimizer",
                "gpu_memory_mb": 100.0 if second % 5 == 0 else None,
            }
        )
    return rows


def follow(rows: list[Any]) -> list[dict[str, Any]]:
    latest, seen = LatestFigures(), []
    for row in rows:
        latest.update([row])
        seen.append(latest.build()["3"])
    return seen


@pytest.mark.parametrize("rate", [0.37, 3.0, 271.3])
def test_a_rate_is_counted_from_step_to_step(rate: float) -> None:
    last = follow(make_rows(rate, 60))[-1]
    assert last["steps_per_s"] == pytest.approx(rate, rel=1e-6)
    assert last["samples_per_s"] == pytest.approx(64 * rate, rel=1e-6)


def test_what_is_read_less_often_stays() -> None:
    last = follow(make_rows(3.0, 44))[-1]
    assert last["gpu_memory_mb"] == 100
    assert last["cpu_cores"] == pytest.approx(2)
    # Two processes have waited half a second each second together.
    assert last["wait_share"] == pytest.approx(0.25)
    assert last["window_s"] == pytest.approx(10)


def test_gpu_memory_that_is_read_and_not_told_is_unknown() -> None:
    *before, row = make_rows(3.0, 10)
    latest = LatestFigures()
    for one in before:
        latest.update([one], has_gpu_memory=one["gpu_memory_mb"] is not None)
    assert latest.build()["3"]["gpu_memory_mb"] == 100
    # It has moved into a pid namespace of its own.
    latest.update([{**row, "gpu_memory_mb": None}], has_gpu_memory=True)
    assert latest.build()["3"]["gpu_memory_mb"] is None


def test_who_never_reported_has_no_rate() -> None:
    last = follow(make_rows(3.0, 20, first=100.0))[-1]
    assert (last["steps"], last["steps_per_s"], last["last_step_age_s"]) == (None, None, None)
    assert not last["steady"]


def test_who_has_stopped_has_the_rate_0() -> None:
    last = follow(make_rows(3.0, 40, until=1020.0))[-1]
    assert last["steps_per_s"] == 0
    assert last["last_step_age_s"] >= 19


def test_a_rate_is_steady_after_three_windows_and_the_warm_up() -> None:
    seen = follow(make_rows(10.0, 60))
    first = next(second for second, one in enumerate(seen) if one["steady"])
    assert 30 <= first <= 36
    assert all(one["steady"] for one in seen[first:])


def test_slow_steps_need_longer_windows() -> None:
    seen = follow(make_rows(0.2, 150))
    first = next(second for second, one in enumerate(seen) if one["steady"])
    assert first >= 120


@pytest.mark.parametrize(("rate", "settled"), [(10.0, 12), (1.0, 21), (0.25, 78)])
def test_the_warm_up_is_over_after_10_s_and_20_steps(rate: float, settled: int) -> None:
    seen = follow(make_rows(rate, 100))
    since = [one["settled_s"] for one in seen]
    assert since[: settled + 1] == [0.0] * (settled + 1)
    assert since[settled + 1 :] == [float(n + 1) for n in range(99 - settled)]


@pytest.mark.parametrize("rate", [0.37, 10.0, 271.3])
def test_the_mean_of_an_even_rate_is_that_rate(rate: float) -> None:
    last = follow(make_rows(rate, 240))[-1]
    assert last["mean_steps_per_s"] == pytest.approx(rate, rel=1e-6)
    assert last["mean_error"] == pytest.approx(0.0, abs=1e-6)


def test_a_mean_has_an_error_from_three_windows_on() -> None:
    seen = follow(make_rows(10.0, 60))
    first = next(second for second, one in enumerate(seen) if one["mean_error"] is not None)
    assert seen[first - 1]["mean_steps_per_s"] == pytest.approx(10.0)
    # The warm-up is over 10 s after the first step, which is in second 2.
    assert first == 12 + 30


def test_windows_of_a_mean_hold_five_steps() -> None:
    seen = follow(make_rows(0.2, 240))
    first = next(second for second, one in enumerate(seen) if one["mean_error"] is not None)
    settled = next(second for second, one in enumerate(seen) if one["settled_s"])
    # They are made in the time between five steps, or in up to one step more.
    assert 3 * 25 <= first - settled + 1 <= 3 * 30


def follow_uneven(rates: list[float]) -> list[dict[str, Any]]:
    """A member that has each of these rates for ten seconds, after a warm-up of 13."""
    latest, seen, steps = LatestFigures(), [], 0.0
    for second in range(13 + 10 * len(rates)):
        steps += rates[max(0, second - 13) // 10]
        at = 1000.0 + second
        row = make_rows(1.0, 1)[0] | {
            "at": at, "steps": int(steps), "first_step_at": 1002.0, "last_step_at": at,
        }  # fmt: skip
        latest.update([row])
        seen.append(latest.build()["3"])
    return seen


def test_what_goes_up_and_down_is_not_steady_but_has_a_mean() -> None:
    last = follow_uneven([100.0, 120.0] * 5)[-1]
    assert not last["steady"]
    assert last["mean_steps_per_s"] == pytest.approx(110.0, rel=0.01)
    # Ten windows with a standard deviation of 10.5.
    assert last["mean_error"] == pytest.approx(10.5 / 110 / 10**0.5, rel=0.1)


def test_a_pause_makes_a_mean_inexact() -> None:
    seen = follow_uneven([100.0, 100.0, 0.0, 100.0, 100.0])
    assert seen[-1]["mean_error"] > 0.15


def test_a_rate_that_rises_is_not_steady() -> None:
    points = [
        Point(at=float(t), steps=t * t, samples=None, wait_s=None, cpu_s=None, last_step_at=t)
        for t in range(1, 60)
    ]
    assert not is_steady(points, warm_at=0.0)


def test_a_start_anew_begins_from_nothing() -> None:
    rows = make_rows(10.0, 60)
    again = [{**row, "start": 2, "at": row["at"] + 100} for row in make_rows(10.0, 2)]
    last = follow([*rows, *again])[-1]
    assert (last["start"], last["steady"], last["steps"]) == (2, False, None)


def test_a_window_is_never_shorter_than_asked_for() -> None:
    points = [Point(float(t), 0, None, None, None, None) for t in (0, 4, 9, 12)]
    assert find_window(points, 3, 10.0) == 0
    assert find_window(points, 3, 8.0) == 1
    assert find_window(points, 3, 20.0) is None


def test_a_counter_that_went_back_gives_no_rate() -> None:
    older = Point(0.0, 10, None, None, None, 0.0)
    assert compute_rate(older, Point(9.0, 3, None, None, None, 9.0)) is None
