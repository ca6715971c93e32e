from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.planning.hard_limits import format_cpu_mask, split_cpus

Cores = list[list[int]]


@st.composite
def machines(draw: st.DrawFn) -> Cores:
    """Cores with one or two threads (or four, as on POWER), their CPUs numbered at random."""
    threads = draw(st.sampled_from([1, 2, 4]))
    count = draw(st.integers(1, 8))
    cpus = draw(st.permutations(range(threads * count)))
    cores = [cpus[index * threads : (index + 1) * threads] for index in range(count)]
    # Slurm may have given a part of a core.
    return [core[: draw(st.integers(1, threads))] for core in cores]


WANTED = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(cores=machines(), wanted=WANTED)
def test_a_division_is_disjoint_and_complete_and_gives_each_what_it_wants(
    cores: Cores, wanted: list[int]
) -> None:
    every = sorted(cpu for core in cores for cpu in core)
    shares = split_cpus(cores, wanted)
    if shares is None:
        assert len(every) < sum(wanted)
        return
    assert sorted(cpu for share in shares for cpu in share) == every
    assert len(shares) == len(wanted)
    assert all(len(share) >= want for share, want in zip(shares, wanted, strict=True))
    assert all(list(share) == sorted(share) for share in shares)


@given(threads=st.sampled_from([2, 4]), wanted=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_siblings_stay_together_where_all_want_whole_cores(threads: int, wanted: list[int]) -> None:
    count = sum(wanted)
    cores = [[core + count * thread for thread in range(threads)] for core in range(count)]
    shares = split_cpus(cores, [want * threads for want in wanted])
    assert shares is not None
    for share in shares:
        assert all(set(core) <= set(share) for core in cores if set(core) & set(share))


@st.composite
def full_machines(draw: st.DrawFn) -> tuple[Cores, list[int]]:
    """Whole cores, and members that want all CPUs: what nobody wants is spread over all."""
    threads = draw(st.sampled_from([1, 2, 4]))
    count = draw(st.integers(1, 8))
    total = threads * count
    cpus = draw(st.permutations(range(total)))
    cores = [cpus[index * threads : (index + 1) * threads] for index in range(count)]
    cuts = sorted(draw(st.sets(st.integers(0, total), max_size=5)) | {0, total})
    return cores, draw(st.permutations([b - a for a, b in itertools.pairwise(cuts)]))


@given(full_machines())
def test_at_most_one_core_per_member_is_shared_with_others(full: tuple[Cores, list[int]]) -> None:
    cores, wanted = full
    shares = split_cpus(cores, wanted)
    assert shares is not None
    split = [core for core in cores if sum(bool(set(core) & set(share)) for share in shares) > 1]
    assert len(split) <= len(wanted)


@given(threads=st.sampled_from([1, 2, 4]), members=st.integers(1, 6), more=st.integers(0, 6))
def test_no_core_is_shared_where_each_member_can_have_one(
    threads: int, members: int, more: int
) -> None:
    cores = [list(range(core * threads, (core + 1) * threads)) for core in range(members + more)]
    shares = split_cpus(cores, [1] * members)
    assert shares is not None
    for core in cores:
        assert sum(bool(set(core) & set(share)) for share in shares) == 1
    sizes = sorted(len(share) for share in shares)
    assert sizes[-1] - sizes[0] <= threads


@given(cores=machines(), wanted=WANTED)
def test_a_division_depends_only_on_what_there_is(cores: Cores, wanted: list[int]) -> None:
    assert split_cpus(cores, wanted) == split_cpus([core[::-1] for core in cores[::-1]], wanted)


@pytest.mark.parametrize(
    ("cores", "wanted", "expected"),
    [
        ([[0, 4], [1, 5], [2, 6], [3, 7]], [2, 2, 2, 2], ((0, 4), (1, 5), (2, 6), (3, 7))),
        ([[0], [1], [2], [3]], [1, 1], ((0, 2), (1, 3))),
        ([[0, 1], [2, 3]], [1, 3], ((3,), (0, 1, 2))),
        ([[0, 1], [2, 3]], [1, 1, 1, 1], ((0,), (1,), (2,), (3,))),
        ([[0, 1], [2, 3], [4, 5]], [2, 1], ((0, 1, 4, 5), (2, 3))),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], [1, 1], ((0, 2, 4, 6), (1, 3, 5, 7))),
        ([[0, 1], [2, 3]], [1, 1, 1], ((0,), (1,), (2, 3))),
        ([[0], [1]], [1, 1, 1], None),
        ([[0], [1]], [], None),
    ],
)
def test_divisions_of_small_machines(
    cores: Cores, wanted: list[int], expected: tuple[tuple[int, ...], ...] | None
) -> None:
    assert split_cpus(cores, wanted) == expected


@given(cpus=st.sets(st.integers(0, 300), min_size=1))
def test_a_mask_names_its_cpus(cpus: set[int]) -> None:
    mask = int(format_cpu_mask(sorted(cpus)), 16)
    assert {cpu for cpu in range(301) if mask >> cpu & 1} == cpus


def test_a_mask_as_slurm_reads_it() -> None:
    assert format_cpu_mask((3, 0, 2)) == "0xd"
