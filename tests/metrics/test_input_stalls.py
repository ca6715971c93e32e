"""The shares of a training's time, from the time of its batches in each phase."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.input_stalls import (
    CORES_MOST,
    PHASES,
    advise_cores,
    compute_stalls,
    make_rising,
)
from slurm_colloc.report.stalls_view import BAR_WIDTH, draw_bar, render_stalls

TIMES = st.floats(1e-4, 10.0)


def build_result(
    *means: float,
    apart: float | None = None,
    untold: str = "",
    turns: int = 3,
    workers: int = 2,
    asked: int = 10**6,
    disk: int = 10**6,
) -> dict[str, object]:
    timed = {name: [[10, 10 * mean]] * turns for name, mean in zip(PHASES[1:], means, strict=True)}
    timed["apart"] = [] if apart is None else [[10, 10 * apart]] * turns
    return {
        "schema": 1, "final": True, "problem": "", "workers": workers, "cpus": 2,
        "processes": 1 if apart is None else 2, "exchange_untold": untold,
        "asked_bytes": asked, "disk_bytes": disk, "timed": timed,
    }  # fmt: skip


@given(st.lists(TIMES, min_size=5, max_size=5), st.integers(0, 8))
def test_shares_are_parts_of_the_whole(means: list[float], workers: int) -> None:
    stalls = compute_stalls(build_result(*means[1:], apart=means[0], workers=workers))
    assert stalls is not None
    assert stalls.exchange is not None
    shares = (stalls.gpu, stalls.exchange, stalls.copies, stalls.decoding, stalls.disk)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    assert stalls.gpu > 0
    named = dict(zip(("gpu", "exchange", "copies", "decoding", "disk"), shares, strict=True))
    assert len(draw_bar(named)) == BAR_WIDTH
    advice = advise_cores(stalls)
    if advice is not None:
        assert 1 <= advice.cores <= CORES_MOST
        assert advice.speedup >= 1 - 1e-9


@given(TIMES, TIMES, TIMES, TIMES, TIMES)
def test_what_was_injected_is_recovered(
    gpu: float, sent: float, copy: float, decode: float, disk: float
) -> None:
    parts = (gpu, sent, copy, decode, disk)
    apart, *rest = itertools.accumulate(parts)
    stalls = compute_stalls(build_result(*rest, apart=apart))
    assert stalls is not None
    found = (stalls.gpu, stalls.exchange, stalls.copies, stalls.decoding, stalls.disk)
    assert found == pytest.approx([part / sum(parts) for part in parts], abs=1e-9)


def test_without_a_phase_apart_exchange_is_unknown_and_not_nothing() -> None:
    stalls = compute_stalls(build_result(1.0, 1.0, 2.0, 2.0, untold="it computes otherwise"))
    assert stalls is not None
    assert (stalls.gpu, stalls.exchange) == (0.5, None)
    told = render_stalls(stalls)
    assert "exchange is not told: it computes otherwise" in told
    assert "exchange 0 %" not in told
    alone = compute_stalls(build_result(1.0, 1.0, 2.0, 2.0))
    assert alone is not None
    assert "exchange" not in render_stalls(alone)


def test_exchange_has_advice_with_its_gain() -> None:
    stalls = compute_stalls(build_result(2.0, 2.0, 2.0, 2.0, apart=1.0))
    assert stalls is not None
    first, bar, *advice = render_stalls(stalls).splitlines()
    assert first == "exchange between GPUs holds it up for 50 % of its time"
    assert (
        bar
        == f"[{'#' * 25}{'x' * 25}]  GPU 50 %, exchange 50 %, copies 0 %, decoding 0 %, disk 0 %"
    )
    # A quarter of the exchange is left: 1 / (0.5 + 0.125).
    assert "no_sync() for 3 of 4, make it up to 1.6 times as fast" in advice[0]
    assert "on one GPU each do up to 2.0 times as much" in advice[0]


def test_cores_are_asked_for_all_processes() -> None:
    stalls = compute_stalls(build_result(1.0, 1.0, 3.0, 3.0, apart=0.9))
    assert stalls is not None
    told = render_stalls(stalls)
    assert "6 cores instead of 2 for each process (--cpus-per-task=12, num_workers=6)" in told


@given(st.lists(TIMES, min_size=1, max_size=6))
def test_the_nearest_rising_values(values: list[float]) -> None:
    rising = make_rising(values)
    assert all(a <= b for a, b in itertools.pairwise(rising))
    assert sum(rising) == pytest.approx(sum(values))
    if values == sorted(values):
        assert rising == values


def test_one_noisy_turn_decides_nothing() -> None:
    result = build_result(1.0, 1.0, 2.0, 2.0)
    timed = result["timed"]
    assert isinstance(timed, dict)
    timed["resident"] = [[10, 10.0], [10, 70.0], [10, 10.0]]
    stalls = compute_stalls(result)
    assert stalls is not None
    assert (stalls.gpu, stalls.decoding) == (0.5, 0.5)


def test_advice_has_cores_and_a_gain() -> None:
    # Two cores take 3 s for a batch that the GPU computes in 1 s.
    stalls = compute_stalls(build_result(1.0, 1.0, 3.0, 3.0))
    assert stalls is not None
    told = render_stalls(stalls)
    assert "decoding holds it up for 67 % of its time" in told
    assert "6 cores instead of 2 (--cpus-per-task=6, num_workers=6)" in told
    assert "up to 3.0 times as fast; or share one loader" in told


def test_one_worker_is_advised_in_words() -> None:
    stalls = compute_stalls(build_result(1.0, 1.0, 1.5, 1.5, workers=0))
    assert stalls is not None
    assert "decoding: a worker of its own (num_workers=1) makes it up to 1.5" in render_stalls(
        stalls
    )


def test_without_workers_one_more_core_decodes_meanwhile() -> None:
    stalls = compute_stalls(build_result(1.0, 1.0, 2.0, 2.0, workers=0))
    assert stalls is not None
    advice = advise_cores(stalls)
    assert advice is not None
    assert (advice.cores, advice.speedup) == (1, 2.0)


@pytest.mark.parametrize(
    ("disk", "asked", "told"),
    [(0, 10**6, True), (10**4, 10**6, True), (10**5, 10**6, False), (0, 100, False)],
)
def test_a_cold_read_that_was_not_achieved_is_said(disk: int, asked: int, told: bool) -> None:
    stalls = compute_stalls(build_result(1.0, 1.0, 1.0, 1.5, asked=asked, disk=disk))
    assert stalls is not None
    assert ("cold read not achieved" in render_stalls(stalls)) is told


def test_a_training_that_waits_for_nothing_gets_no_advice() -> None:
    stalls = compute_stalls(build_result(1.0, 1.01, 1.02, 1.02))
    assert stalls is not None
    first, *rest = render_stalls(stalls).splitlines()
    assert first.startswith("nothing holds it up: 98 %")
    assert len(rest) == 1


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"schema": 1, "final": True, "problem": "it failed"},
        build_result(1.0, 1.0, 1.0, 1.0, turns=0),
        build_result(1.0, 1.0, 1.0, float("nan")),
        build_result(1.0, 1.0, 1.0, 0.0),
        {**build_result(1.0, 1.0, 1.0, 1.0), "timed": {"resident": 7}},
        {**build_result(1.0, 1.0, 1.0, 1.0), "workers": "many"},
        build_result(1.0, 1.0, 1.0, 1.0, apart=0.0),
    ],
)
def test_a_result_without_figures_tells_nothing(result: dict[str, object]) -> None:
    assert compute_stalls(result) is None
