"""The laws of sharing, held against the measurements that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc_lab.simgpu.training.shared_speed import (
    ProcessLoad,
    compute_rates,
    compute_use,
    divide_evenly,
)

# SM active % and DRAM % of each work alone.
WORKS = {"small": (11.7, 2.8), "medium": (30.1, 9.7), "large": (43.0, 18.0)}

# work, mode, k, throughput relative to one alone, SM active %, DRAM %, W: rows measured on an H200.
MEASURED = [
    ("small", "timeslice", 7, 3.48, 41.4, 9.9, 276),
    ("small", "timeslice", 12, 3.52, 42.6, 10.1, 278),
    ("small", "mps", 7, 6.50, 81.5, 26.5, 448),
    ("small", "mps", 12, 6.43, 89.2, 31.3, 465),
    ("small", "mps100", 7, 7.44, 49.9, 30.7, 442),
    ("small", "mps100", 12, 8.69, 55.0, 41.6, 520),
    ("small", "mps200", 7, 7.54, 64.3, 30.0, 457),
    ("small", "mps200", 12, 9.47, 77.0, 44.9, 561),
    ("small", "mps200", 16, 10.22, 74.7, 49.5, 580),
    ("small", "mps200", 20, 10.17, 72.2, 49.6, 571),
    ("medium", "timeslice", 6, 1.93, 60.3, 19.1, 400),
    ("medium", "mps", 3, 2.54, 81.9, 32.9, 531),
    ("medium", "mps", 6, 2.49, 90.7, 37.5, 549),
    ("medium", "mps100", 6, 3.22, 66.0, 48.9, 617),
    ("medium", "mps200", 6, 3.38, 84.1, 50.7, 652),
    ("large", "timeslice", 3, 1.59, 71.6, 29.0, 490),
    ("large", "mps", 2, 1.91, 87.4, 40.9, 598),
    ("large", "mps", 3, 1.86, 88.2, 42.8, 602),
    ("large", "mps100", 3, 2.02, 68.0, 46.0, 621),
    ("large", "mps200", 3, 2.00, 81.8, 46.2, 626),
]
# Unlike partners: large and small together.
PAIRS = [("timeslice", (100, 100), 1.90), ("mps", (100, 100), 1.80), ("mps", (70, 30), 1.96)]


def build_loads(work: str, mode: str, count: int) -> list[ProcessLoad]:
    sm, dram = WORKS[work]
    if mode == "timeslice":
        return [ProcessLoad(sm, dram)] * count
    limit = {"mps": 100.0, "mps100": 100 / count, "mps200": min(100, 200 / count)}[mode]
    return [ProcessLoad(sm, dram, limit, mps_server=1)] * count


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(map(str, row[:3])))
def test_a_measured_row_is_met(row: tuple[str, str, int, float, float, float, float]) -> None:
    work, mode, count, ratio, sm, dram, watts = row
    loads = build_loads(work, mode, count)
    uses = [compute_use(loads, n, idle_power_w=76, power_limit_w=700) for n in range(count)]
    assert sum(use.rate for use in uses) == pytest.approx(ratio, rel=0.10)
    assert sum(use.sm_share for use in uses) == pytest.approx(sm, rel=0.25)
    assert sum(use.dram_share for use in uses) == pytest.approx(dram, rel=0.20)
    assert 76 + sum(use.power_w for use in uses) == pytest.approx(watts, rel=0.15)


@pytest.mark.parametrize(("mode", "limits", "total"), PAIRS)
def test_unlike_partners_are_met(mode: str, limits: tuple[float, float], total: float) -> None:
    server = None if mode == "timeslice" else 1
    loads = [
        ProcessLoad(*WORKS["large"], limits[0], mps_server=server),
        ProcessLoad(*WORKS["small"], limits[1], mps_server=server),
    ]
    assert sum(compute_rates(loads)) == pytest.approx(total, rel=0.12)


@pytest.mark.parametrize("work", WORKS)
def test_alone_nothing_is_lost(work: str) -> None:
    assert compute_rates([ProcessLoad(*WORKS[work])]) == (1.0,)
    assert compute_rates([ProcessLoad(*WORKS[work], mps_server=1)]) == (1.0,)


def test_who_only_holds_memory_slows_nobody() -> None:
    assert compute_rates([ProcessLoad(90.0), ProcessLoad(0.0), ProcessLoad(0.0)])[0] == 1.0


def test_a_thread_limit_is_a_ceiling_for_one_that_is_alone() -> None:
    assert compute_rates([ProcessLoad(80.0, 0.0, 40.0, mps_server=1)]) == (0.5,)
    # Without MPS nobody enforces it.
    assert compute_rates([ProcessLoad(80.0, 0.0, 40.0)]) == (1.0,)


loads_of_any_kind = st.builds(
    ProcessLoad,
    sm_demand=st.floats(0, 100),
    dram_demand=st.floats(0, 100),
    thread_percentage=st.floats(1, 100),
    mps_server=st.sampled_from([None, 1, 2]),
)


@given(st.lists(loads_of_any_kind, min_size=1, max_size=12), loads_of_any_kind)
def test_a_newcomer_never_speeds_up_the_gpu_s_users_of_time_slices(
    loads: list[ProcessLoad], newcomer: ProcessLoad
) -> None:
    sliced = [ProcessLoad(load.sm_demand) for load in loads]
    before = compute_rates(sliced)
    after = compute_rates([*sliced, ProcessLoad(newcomer.sm_demand)])
    assert all(new <= old + 1e-9 for old, new in zip(before, after, strict=False))


@given(st.lists(loads_of_any_kind, min_size=1, max_size=12))
def test_a_rate_is_a_part_of_the_speed_alone(loads: list[ProcessLoad]) -> None:
    assert all(0 <= rate <= 1 for rate in compute_rates(loads))
    for number in range(len(loads)):
        use = compute_use(loads, number, idle_power_w=76, power_limit_w=700)
        assert 0 <= use.sm_share <= 100
        assert 0 <= use.dram_share <= 100
        assert use.power_w >= 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_no_more_is_divided_than_there_is(needs: list[float]) -> None:
    given_out = sum(need * part for need, part in zip(needs, divide_evenly(needs), strict=True))
    assert given_out <= 1 + 1e-9
    assert given_out == pytest.approx(min(1.0, sum(needs)))
