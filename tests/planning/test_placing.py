"""Rules of others place jobs as they say, among few jobs and among very many."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import Rule
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import Limits, Subject, find_broken
from slurm_colloc_lab.rules import other_rules
from tests.planning.coefficients import LIMITS
from tests.planning.subjects import limits, make_subjects, subjects

GPU_MB = 143_771


def place_one_by_one(
    rule: Rule, of: Sequence[Subject], limit: Limits, gpu_memory_mb: int | None
) -> list[tuple[int, ...]]:
    """The rules word by word: every pack is asked for every job."""
    limit = dataclasses.replace(limit, finish_s=None)
    order = list(range(len(of)))
    if rule is Rule.ADDITIVE:
        order.sort(key=lambda i: (-of[i].run_s, i))
    packs: list[list[int]] = []
    for i in order:
        found = [
            pack
            for pack in packs
            if _takes(rule, [of[j] for j in pack], of[i], gpu_memory_mb)
            and not find_broken([*(of[j] for j in pack), of[i]], limit)
        ]
        if rule is Rule.CARMA:
            found.sort(key=lambda pack: sum(of[j].gpu_memory_mb or 0 for j in pack))
        if found:
            found[0].append(i)
        else:
            packs.append([i])
    return [tuple(pack) for pack in packs]


def _takes(rule: Rule, there: Sequence[Subject], new: Subject, gpu_memory_mb: int | None) -> bool:
    everyone = [*there, new]
    if any(one.load is None or one.gpu_memory_mb is None for one in everyone):
        return False
    looked_at = everyone if rule is Rule.ADDITIVE else there
    engine, sm, dram = (
        sum(getattr(one.load, name) for one in looked_at) for name in ("engine", "sm", "dram")
    )
    if rule is Rule.ADDITIVE:
        return bool(engine <= 1 and sm <= 1 and dram <= 0.8)
    if gpu_memory_mb is None or (sm >= 0.8 and dram >= 0.4):
        return False
    return sum(one.gpu_memory_mb or 0 for one in everyone) + 2048 <= gpu_memory_mb


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    kinds=st.lists(subjects(), min_size=1, max_size=8),
    times=st.integers(1, 4),
    limit=limits,
    has_instances=st.booleans(),
    gpu_memory_mb=st.none() | st.integers(2000, GPU_MB),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("rule", [Rule.ADDITIVE, Rule.CARMA])
def test_jobs_are_placed_as_the_rule_says(
    *,
    rule: Rule,
    kinds: list[Subject],
    times: int,
    limit: Limits,
    has_instances: bool,
    gpu_memory_mb: int | None,
    seed: int,
) -> None:
    # Of some it is known which are alike.
    named = [dataclasses.replace(one, kind=(n,) if n % 3 else None) for n, one in enumerate(kinds)]
    chosen = named * times
    random.Random(seed).shuffle(chosen)
    limit = dataclasses.replace(limit, has_instances=has_instances)
    placed = other_rules.partition(rule, chosen, limit, gpu_memory_mb)
    assert list(placed) == place_one_by_one(rule, chosen, limit, gpu_memory_mb)


@pytest.mark.parametrize("rule", [Rule.ADDITIVE, Rule.CARMA])
def test_among_many_kinds_jobs_are_placed_as_the_rule_says(rule: Rule) -> None:
    many = [dataclasses.replace(one, kind=i) for i, one in enumerate(make_subjects(300, seed=4))]
    placed = other_rules.partition(rule, many, LIMITS, GPU_MB)
    assert list(placed) == place_one_by_one(rule, many, LIMITS, GPU_MB)
    assert max(map(len, placed)) > 1


@pytest.mark.parametrize("rule", [Rule.ADDITIVE, Rule.CARMA])
@pytest.mark.parametrize("engine", [0.3, 0.9])
def test_no_pack_is_asked_twice_for_what_it_refused(
    rule: Rule, engine: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def count(members: Sequence[Subject], limit: Limits) -> tuple[object, ...]:
        nonlocal asked
        asked += 1
        return find_broken(members, limit)

    monkeypatch.setattr(other_rules, "find_broken", count)
    load = Load(engine, engine / 2, 0.1)
    alike = [Subject(i, 1, None, 30_000, 600.0, load, 2.0, kind="a") for i in range(2000)]
    # Three of them fit into the memory.
    limit = dataclasses.replace(LIMITS, gpu_memory_mb=95_000)
    packs = other_rules.partition(rule, alike, limit, GPU_MB)
    assert sum(map(len, packs)) == len(alike)
    assert asked <= 2 * len(alike)
