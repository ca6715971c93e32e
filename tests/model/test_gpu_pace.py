"""Slow GPUs are found by rates alone, and none is called slow for what its jobs are."""

from __future__ import annotations

import random

import pytest

from slurm_colloc.model.gpu_pace import (
    GPUS_MOST,
    KEPT_S,
    RUNS_MOST,
    GpuPace,
    GpuRate,
    GpuRun,
    GpuRuns,
    compare_paces,
)
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.usage_profile import MeasuredBy

NOW = 2e9


def run(number: int, uuid: str, *rates: GpuRate, throttled_s: float | None = None) -> GpuRun:
    """A pack, the later the larger its number."""
    at = NOW - 1000 + number
    return GpuRun(f"p{number}", uuid, f"node-{uuid}", at, rates, 100.0, throttled_s)


def rate(steps_per_s: float, job: str = "a", kind: str = "k", batch: float = 32.0) -> GpuRate:
    return GpuRate(kind, job, steps_per_s, MeasuredBy.ALONE, batch, 1000.0)


def compare(*runs: GpuRun) -> dict[str, GpuPace]:
    return {pace.uuid: pace for pace in compare_paces(GpuRuns("m").add(runs))}


def test_a_gpu_on_which_a_job_is_slower_in_three_packs_is_slow() -> None:
    runs = [run(n, f"g{n % 3}", rate(6.7 if n % 3 == 0 else 10.0)) for n in range(9)]
    paces = compare(*runs)
    assert [uuid for uuid, pace in paces.items() if pace.is_slow] == ["g0"]
    assert paces["g0"].rate == pytest.approx(0.67)
    assert paces["g0"].describe() == "g0 (node-g0) made 0.67 of the usual rate in 3 of 3 packs"


def test_two_packs_say_nothing() -> None:
    runs = [run(n, f"g{n % 3}", rate(6.7 if n % 3 == 0 else 10.0)) for n in range(6)]
    assert not any(pace.is_slow for pace in compare(*runs).values())


def test_a_gpu_that_was_repaired_is_slow_no_more() -> None:
    runs = [run(n, "g0", rate(6.7 if n < 4 else 10.0)) for n in range(10)]
    runs += [run(20 + n, f"h{n}", rate(10.0)) for n in range(3)]
    assert not compare(*runs)["g0"].is_slow


def test_a_larger_batch_makes_no_gpu_slow() -> None:
    runs = [run(n, "g0", rate(5.0, f"a{n}", batch=64.0)) for n in range(4)]
    runs += [run(10 + n, f"h{n}", rate(10.0, f"b{n}")) for n in range(3)]
    assert not any(pace.is_slow for pace in compare(*runs).values())


def test_numbers_among_arguments_make_no_gpu_slow_unless_they_were_seen_not_to_matter() -> None:
    depths = [run(n, "g0", rate(5.0, "deep")) for n in range(4)]
    depths += [run(10 + n, f"h{n}", rate(10.0, f"flat{n}")) for n in range(3)]
    assert not any(pace.is_slow for pace in compare(*depths).values())
    wide = [replace(rate(5.0, f"wide{n}"), gpu_memory_mb=2000.0) for n in range(4)]
    widths = [run(n, "g0", one) for n, one in enumerate(wide)]
    widths += [run(10 + n, f"h{n}", rate(10.0, f"narrow{n}")) for n in range(3)]
    assert not any(pace.is_slow for pace in compare(*widths).values())
    seeds = [run(n, "g0", rate(5.0, f"s{n}"), rate(5.1, f"t{n}")) for n in range(3)]
    seeds += [run(10 + n, f"h{n}", rate(10.0, f"u{n}")) for n in range(3)]
    assert compare(*seeds)["g0"].is_slow
    # On one GPU they differ: they matter.
    unlike = [*seeds, run(30, "h0", rate(10.0, "x"), rate(5.0, "y"))]
    assert not compare(*unlike)["g0"].is_slow


def test_rates_that_were_measured_in_two_ways_are_not_compared() -> None:
    paused = replace(rate(6.0), measured_by=MeasuredBy.PAUSING)
    runs = [run(n, "g0", paused) for n in range(4)]
    runs += [run(10 + n, "h0", rate(10.0)) for n in range(4)]
    assert not any(pace.is_slow for pace in compare(*runs).values())


def test_a_gpu_that_was_throttled_is_slow_and_one_of_which_nothing_was_read_is_not() -> None:
    paces = compare(run(1, "g0", throttled_s=12.0), run(2, "g1", throttled_s=0.0), run(3, "g2"))
    assert [uuid for uuid, pace in paces.items() if pace.is_slow] == ["g0"]
    assert paces["g0"].describe() == "g0 (node-g0) was throttled 12 % of the time"
    assert paces["g2"].throttled is None


def test_what_is_kept_is_bounded_and_a_pack_counts_once() -> None:
    runs = GpuRuns("m")
    for number in range(GPUS_MOST + 20):
        runs = runs.add([run(number, f"g{number}", rate(1.0))])
    assert len({one.uuid for one in runs.runs}) == GPUS_MOST
    assert "g0" not in {one.uuid for one in runs.runs}
    same = GpuRuns("m")
    for number in range(30):
        same = same.add([run(number, "g", rate(1.0))] * 2)
    assert [one.pack for one in same.runs] == [f"p{n}" for n in range(30 - RUNS_MOST, 30)]


def test_old_packs_say_nothing() -> None:
    runs = [replace(run(n, "g0", rate(6.0)), at=NOW - KEPT_S - 2000) for n in range(4)]
    runs += [run(10 + n, f"h{n}", rate(10.0)) for n in range(3)]
    assert "g0" not in compare(*runs)


@pytest.mark.parametrize("seed", range(200))
def test_among_many_gpus_those_that_are_slow_are_found_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    paces = {f"g{n}": chance.uniform(0.96, 1.04) for n in range(chance.randint(4, 12))}
    slow = set(chance.sample(sorted(paces), chance.randint(0, len(paces) // 4)))
    for uuid in slow:
        paces[uuid] = chance.uniform(0.5, 0.8)
    jobs = {f"j{n}": 10 ** chance.uniform(-1, 2) for n in range(3)}
    runs = []
    for number in range(8 * len(paces)):
        uuid = sorted(paces)[number % len(paces)]
        own = [
            rate(jobs[job] * paces[uuid] * chance.gauss(1.0, 0.01), job, job)
            for job in chance.sample(sorted(jobs), chance.randint(1, 3))
        ]
        runs.append(run(number, uuid, *own))
    assert {uuid for uuid, pace in compare(*runs).items() if pace.is_slow} == slow
