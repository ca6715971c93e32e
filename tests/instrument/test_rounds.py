"""Steps of a program from the steps of its optimizers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.instrument.rounds import MOST_KNOWN, Rounds


def count(steps: str) -> tuple[int, int]:
    """A letter is an optimizer that steps; a small one is skipped."""
    rounds = Rounds()
    for letter in steps:
        rounds.note(ord(letter.upper()), letter.isupper())
    return rounds.steps, rounds.skipped


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", (0, 0)),
        ("A", (1, 0)),
        ("AAA", (3, 0)),
        ("AaAaa", (2, 3)),
        # In turn, always in the same order or not.
        ("ABABAB", (3, 0)),
        ("ABBAABBA", (4, 0)),
        ("ABCDABCD", (2, 0)),
        # One of them more often.
        ("AAAAABAAAAAB", (10, 0)),
        ("ABBABBABB", (6, 0)),
        ("BBABBABBA", (6, 0)),
        # One training after another, and phases that take turns.
        ("AAAABBBBCCC", (11, 0)),
        ("AAAABBBBAAAA", (12, 0)),
        # Skipped in some of the optimizers, or in all.
        ("AbABab", (2, 1)),
        ("aBabAB", (2, 1)),
        ("AAAabbbbBBB", (6, 5)),
    ],
)
def test_rounds_are_steps(steps: str, expected: tuple[int, int]) -> None:
    assert count(steps) == expected


@given(st.text("ABCabc"))
def test_no_count_is_ever_below_the_busiest_optimizers_or_above_all_steps(steps: str) -> None:
    done, skipped = count(steps)
    assert done >= 0
    assert skipped >= 0
    busiest = max((steps.upper().count(letter) for letter in "ABC"), default=0)
    assert busiest <= done + skipped <= len(steps)


def test_many_optimizers_one_after_another_are_forgotten_in_time() -> None:
    rounds = Rounds()
    for key in range(1, 3 * MOST_KNOWN):
        for _ in range(3):
            rounds.note(key, True)
    assert rounds.optimizers == 3 * MOST_KNOWN - 1
    assert rounds.steps >= 2 * (3 * MOST_KNOWN - 1)
