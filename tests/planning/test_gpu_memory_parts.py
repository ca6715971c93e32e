"""What members that start get of the GPUs' memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.planning.hard_limits import FreeMemory, count_starts

NEEDS = st.lists(st.tuples(st.none() | st.integers(1, 90_000), st.integers(1, 2)), max_size=40)


def build_free(gpus: int, usable_mb: int, *, enforces: bool = True) -> FreeMemory:
    names = [f"GPU-{n}" for n in range(gpus)]
    return FreeMemory(usable_mb, dict.fromkeys(names, usable_mb), dict.fromkeys(names, 0), enforces)


def test_unknown_ones_get_generous_parts_several_at_once() -> None:
    free, parts = build_free(1, 80_000), []
    while (part_mb := free.choose_part_mb(None)) is not None:
        parts.append(part_mb)
        free = free.reserve(part_mb)
    assert parts == [20_000, 15_000, 11_250, 10_000, 10_000, 10_000]
    assert count_starts(build_free(1, 80_000), [None] * 20) == 6


def test_without_limits_one_unknown_has_all_that_is_left() -> None:
    free = build_free(1, 80_000, enforces=False)
    assert free.choose_part_mb(30_000) == 30_000
    free = free.reserve(30_000)
    assert free.choose_part_mb(None) == 50_000
    assert free.reserve(50_000).choose_part_mb(None) is None


@given(
    gpus=st.integers(1, 4), usable_mb=st.integers(1000, 80_000), needs=NEEDS, enforces=st.booleans()
)
def test_memory_is_never_reserved_beyond_a_gpus(
    gpus: int, usable_mb: int, needs: list[tuple[int | None, int]], enforces: bool
) -> None:
    free = build_free(gpus, usable_mb, enforces=enforces)
    for need_mb, wanted in needs:
        part_mb = free.choose_part_mb(need_mb, wanted)
        if part_mb is None:
            continue
        assert need_mb is None or part_mb == need_mb
        assert need_mb is not None or part_mb >= usable_mb // 8
        free = free.reserve(part_mb, wanted)
        assert min(free.free_mb.values()) >= 0


@given(needs=st.lists(st.none() | st.integers(1, 40_000), max_size=20))
def test_as_many_are_counted_as_could_start_one_after_the_other(needs: list[int | None]) -> None:
    free, count = build_free(1, 80_000), 0
    for need_mb in needs:
        part_mb = free.choose_part_mb(need_mb)
        if part_mb is None:
            break
        free, count = free.reserve(part_mb), count + 1
    assert count_starts(build_free(1, 80_000), needs) == count


@pytest.mark.parametrize(("gpus", "free_mb"), [(1, 60_000), (2, 30_000)])
def test_a_member_gets_the_gpus_with_most_room(gpus: int, free_mb: int) -> None:
    free = FreeMemory(80_000, {"a": 30_000, "b": 60_000}, {"a": 1, "b": 1})
    assert free.choose_gpus(gpus) == ("b", "a")[:gpus]
    assert free.find_free_mb(gpus) == free_mb
