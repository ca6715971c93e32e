"""Joining and submitting again: no answered job is lost or started twice, whatever is killed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .joining_model import Rules, explore
from .protocol_model import Violation

CASES = 4_000
RULES = Rules()


@pytest.mark.exhaustive
def test_thousands_of_random_histories_keep_every_promise() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        try:
            seen.update(explore(random.Random(seed), RULES).seen)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
    # The histories really reach what they are meant to reach.
    assert set(seen) == {
        "adopted",
        "closed meanwhile",
        "dropped",
        "dropped a submission",
        "joined while running",
        "joined while waiting",
        "refused",
        "started meanwhile",
        "submitted again",
        "unanswered",
    }
    assert all(count > CASES // 200 for count in seen.values()), seen


@pytest.mark.exhaustive
@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_histories_that_hypothesis_looks_for_keep_every_promise(source: random.Random) -> None:
    explore(source, RULES)


def _explore_many(rules: Rules) -> None:
    for seed in range(5 * CASES):
        explore(random.Random(seed), rules)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_each_rule_is_needed(rule: str) -> None:
    without = dataclasses.replace(RULES, **{rule: False})
    with pytest.raises(Violation):
        _explore_many(without)
