"""Taking members over: each ends up in one place, is started once, and none is lost."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .protocol_model import Violation
from .take_over_model import Rules, explore

CASES = 10_000
RULES = Rules()


def play(seeds: range, rules: Rules) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = explore(random.Random(seed), rules)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        seen.update(world.seen)
    return seen


def test_random_histories_keep_every_promise() -> None:
    play(range(150), RULES)


@pytest.mark.exhaustive
def test_ten_thousand_random_histories_keep_every_promise() -> None:
    seen = play(range(CASES), RULES)
    print(seen)
