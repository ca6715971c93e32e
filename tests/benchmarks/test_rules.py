"""The rules that csub is compared with place jobs as they say."""

from __future__ import annotations

import dataclasses

from benchmarks.gpu.rules import Rule, place_by
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import Limits, Subject

LIGHT = Load(engine=0.3, sm=0.1, dram=0.03)
ALIKE = [Subject(i, 1, None, 1000, 600.0, LIGHT, 2.0) for i in range(4)]


def build(**changes: object) -> Subject:
    return dataclasses.replace(ALIKE[0], **changes)  # type: ignore[arg-type]


def test_the_additive_rule_stops_at_the_first_sum_that_is_full() -> None:
    # Engine activity of 0.3 fits three times.
    assert place_by(Rule.ADDITIVE, ALIKE, Limits(), None) == [[0, 1, 2], [3]]
    dense = [build(load=Load(engine=0.1, sm=0.1, dram=0.3))] * 3
    assert place_by(Rule.ADDITIVE, dense, Limits(), None) == [[0, 1], [2]]
    longest_last = [build(run_s=1.0), build(run_s=9.0)]
    assert place_by(Rule.ADDITIVE, longest_last, Limits(), None) == [[1, 0]]
    assert place_by(Rule.ADDITIVE, [build(), build(load=None)], Limits(), None) == [[0], [1]]


def test_carmas_rule_looks_at_who_is_there_and_leaves_two_gib() -> None:
    busy = [build(load=Load(engine=0.9, sm=0.5, dram=0.25))] * 3
    # Two are beyond the cap only once both are there.
    assert place_by(Rule.CARMA, busy, Limits(), 80_000) == [[0, 1], [2]]
    compute = [build(load=Load(engine=0.9, sm=0.5, dram=0.1))] * 3
    assert place_by(Rule.CARMA, compute, Limits(), 80_000) == [[0, 1, 2]]
    large = [build(gpu_memory_mb=30_000)] * 2
    assert place_by(Rule.CARMA, large, Limits(), 62_048) == [[0, 1]]
    assert place_by(Rule.CARMA, large, Limits(), 62_047) == [[0], [1]]


def test_carmas_rule_takes_the_gpu_with_most_memory_left() -> None:
    light = Load(engine=0.1, sm=0.1, dram=0.1)
    subjects = [
        build(load=light, gpu_memory_mb=60_000),
        build(load=light, gpu_memory_mb=30_000),
        build(load=Load(engine=0.9, sm=0.9, dram=0.1), gpu_memory_mb=10_000),
    ]
    # The first two do not fit together; the third goes where more is left.
    assert place_by(Rule.CARMA, subjects, Limits(), 80_000) == [[0], [1, 2]]


def test_what_one_gpu_has_holds_under_every_rule() -> None:
    limits = Limits(members=2)
    for rule in (Rule.CARMA, Rule.ADDITIVE):
        assert place_by(rule, ALIKE, limits, 80_000) == [[0, 1], [2, 3]]
    assert place_by(Rule.EXCLUSIVE, ALIKE, limits, 80_000) == [[0], [1], [2], [3]]
