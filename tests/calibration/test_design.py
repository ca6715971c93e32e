"""The design is whole, deterministic, and fits the GPU, the host and the time."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc_lab.calibration.calibrated_gpu import list_needs
from slurm_colloc_lab.calibration.cells import (
    ALONE,
    MPS,
    TIMESLICE,
    Cell,
    CellTraining,
    Group,
    shorten,
)
from slurm_colloc_lab.calibration.choose_cells import choose_design, estimate_minutes
from slurm_colloc_lab.calibration.workloads import (
    MOST_WORKERS,
    Room,
    choose_names,
    compute_gpu_memory_mb,
)

NEEDS = list_needs()
few = settings(max_examples=20)
H200_MB = 143_771


def design(
    cores: int = 16, seed: int = 1, minutes: float = 10.0, memory_mb: int | None = H200_MB
) -> tuple[Group, ...]:
    return choose_design(NEEDS, Room(cores, memory_mb), seed=seed, minutes=minutes)


def list_shared(groups: tuple[Group, ...], mode: str) -> list[Cell]:
    return [
        cell
        for group in groups
        if group.mode == mode
        for cell in group.cells
        if len(cell.members) > 1
    ]


@few
@given(st.integers(4, 64), st.integers(0, 1000), st.floats(1, 20), st.integers(16_000, H200_MB))
def test_every_group_fits_the_server_the_gpu_and_the_cores(
    cores: int, seed: int, minutes: float, memory_mb: int
) -> None:
    groups = design(cores, seed, minutes, memory_mb)
    for group in groups:
        copies = group.count_copies()
        assert sum(copies.values()) <= MOST_WORKERS
        assert compute_gpu_memory_mb(copies, NEEDS) <= 0.85 * memory_mb
        for cell in group.cells:
            assert sum(NEEDS[member.workload].cpus for member in cell.members) <= cores
            assert group.mode == MPS or all(member.limit is None for member in cell.members)


@few
@given(st.integers(0, 1000), st.floats(1, 20))
def test_whoever_is_measured_together_is_measured_alone(seed: int, minutes: float) -> None:
    groups = design(seed=seed, minutes=minutes)
    alone = Counter(
        cell.members[0].workload
        for group in groups
        for cell in group.cells
        if cell.label == ALONE and cell.members[0].limit is None
    )
    together = {m.workload for g in groups for cell in g.cells for m in cell.members}
    assert together == set(alone) == set(NEEDS)
    # The host may be slow for a while.
    assert min(alone.values()) >= 3


@few
@given(st.integers(0, 1000))
def test_the_same_seed_gives_the_same_design(seed: int) -> None:
    assert design(seed=seed) == design(seed=seed)


def test_another_seed_draws_other_pairs() -> None:
    assert design(seed=1) != design(seed=2)


def test_eight_minutes_of_an_h200_have_what_a_fit_needs() -> None:
    groups = design(minutes=8)
    assert estimate_minutes(groups) <= 8
    mps = list_shared(groups, MPS)
    labels = Counter(cell.label for cell in mps)
    assert labels["pair"] >= 35
    assert labels["triple"] >= 12
    limits = {member.limit for cell in mps for member in cell.members}
    assert {None, 50, 66} <= limits
    sizes = {len(cell.members) for cell in mps}
    assert {2, 3, 4, 7, 12} <= sizes
    sliced = Counter(cell.label for cell in list_shared(groups, TIMESLICE))
    assert sliced["pair"] >= 10
    assert sliced["same"] >= 6


@pytest.mark.parametrize("light", [0, 2, 3])
def test_where_few_are_light_there_are_packs_of_four_all_the_same(light: int) -> None:
    left = [name for name, need in NEEDS.items() if need.light][:light]
    needs = {name: dataclasses.replace(need, light=name in left) for name, need in NEEDS.items()}
    groups = choose_design(needs, Room(16, H200_MB), seed=1, minutes=10.0)
    fours = {
        cell.members
        for cell in list_shared(groups, MPS)
        if cell.label == "pack4" and cell.members[0].limit is None
    }
    assert len(fours) >= 6


def test_modes_and_limits_measure_the_same_members() -> None:
    groups = design()
    free = {
        tuple(m.workload for m in cell.members)
        for cell in list_shared(groups, MPS)
        if cell.members[0].limit is None
    }
    others = [
        tuple(member.workload for member in cell.members)
        for cell in (*list_shared(groups, MPS), *list_shared(groups, TIMESLICE))
        if cell.label in ("pair", "triple")
    ]
    assert set(others) <= free


def test_the_groups_that_are_worth_most_come_first() -> None:
    names = [group.name for group in design()]
    assert names[:3] == ["mps-1", "timeslice-1", "mps-2"]


@few
@given(st.integers(0, 100), st.floats(5, 12))
def test_it_takes_no_longer_than_it_may(seed: int, minutes: float) -> None:
    assert estimate_minutes(design(seed=seed, minutes=minutes)) <= minutes


def test_less_time_means_fewer_packs() -> None:
    counts = [len(list_shared(design(minutes=minutes), MPS)) for minutes in (5, 8, 12)]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("memory_mb", "cores", "missing"),
    [
        (H200_MB, 16, set()),
        (60_000, 16, {"hog"}),
        (81_559, 16, set()),
        (H200_MB, 3, {"loader"}),
        (16_000, 16, {"hog", "gpt125m", "large"}),
    ],
)
def test_what_leaves_no_room_for_others_is_left_out(
    memory_mb: int, cores: int, missing: set[str]
) -> None:
    assert set(NEEDS) - set(choose_names(NEEDS, Room(cores, memory_mb))) == missing


def test_where_mps_cannot_be_used_time_slices_are_measured() -> None:
    room = Room(16, H200_MB, (TIMESLICE,))
    assert {group.mode for group in choose_design(NEEDS, room, minutes=8)} == {TIMESLICE}


def test_no_workloads_make_no_cells() -> None:
    assert not any(group.cells for group in choose_design({}, Room(16)))


def test_short_cells_have_the_same_members() -> None:
    groups = design()
    short = shorten(groups, 0.1, 0.2)
    assert [[c.members for c in g.cells] for g in short] == [
        [c.members for c in g.cells] for g in groups
    ]
    assert {cell.window_s for group in short for cell in group.cells} == {0.2}


def test_copies_are_counted_by_training_and_limit() -> None:
    a, b = CellTraining("mlp"), CellTraining("mlp", 50)
    group = Group("some", MPS, (Cell("pair", (a, b)), Cell("same", (b, b, b))))
    assert group.count_copies() == {a: 1, b: 3}
