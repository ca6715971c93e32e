"""Selectors and filters, as they are typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import MemberState, Selection
from slurm_colloc.session.selection import Choice, parse_states

M = MemberState


@pytest.mark.parametrize(
    ("text", "job", "named"),
    [
        ("4711", "4711", {0, 1, 2, 9}),
        ("L3", "L3", {0, 1, 2, 9}),
        ("last", "last", {0, 1, 2, 9}),
        ("all", "all", {0, 1, 2, 9}),
        ("4711/2", "4711", {2}),
        ("last/2", "last", {2}),
        ("L3/0-1", "L3", {0, 1}),
        ("4711/1,9", "4711", {1, 9}),
        ("4711/0,2-8", "4711", {0, 2}),
        ("4711/02", "4711", {2}),
    ],
)
def test_a_selector_names_members(text: str, job: str, named: set[int]) -> None:
    selection = Selection.parse(text)
    assert selection.job == job
    assert {number for number in (0, 1, 2, 9) if selection.includes(number)} == named
    assert Selection.parse(str(selection)) == selection


@pytest.mark.parametrize(
    "text",
    ["", "all/3", "last/", "lasting", "4711/-3", "4711/3-", "4711/1,,2", "4711/1;2", "4711_",

     "4711/²", "a.sh", "4711/1 2"],
)  # fmt: skip
def test_what_is_no_selector_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageProblem, match="write 4711 for all members of a submission"):
        Selection.parse(text)


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(UsageProblem, match="4711/1,5-3': the range 5-3 runs backwards"):
        Selection.parse("4711/1,5-3")


@given(st.sets(st.integers(0, 60)))
def test_a_selection_of_numbers_names_these_and_no_others(numbers: set[int]) -> None:
    selection = Selection.of("4711", numbers)
    assert {number for number in range(61) if selection.includes(number)} == numbers
    if numbers:
        assert Selection.parse(str(selection)) == selection


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("RUNNING", {M.RUNNING}),
        ("running,pending", {M.RUNNING, M.PENDING}),
        ("R,PD,OOM", {M.RUNNING, M.PENDING, M.OUT_OF_MEMORY}),
        ("LOST, ", {M.LOST}),
        ("", set()),
    ],
)
def test_states_are_read_as_squeue_reads_them(text: str, states: set[MemberState]) -> None:
    assert parse_states(text) == states


def test_an_unknown_state_is_named() -> None:
    with pytest.raises(UsageProblem, match="there is no state 'RUNING': states are PENDING"):
        parse_states("RUNNING,RUNING")


def test_filters_alone_mean_all_members() -> None:
    assert Choice.parse([]).selections == ()
    assert Choice.parse([], "R").selections == (Selection("all"),)
    assert Choice.parse([], "", "train*").selections == (Selection("all"),)
    assert Choice.parse(["4711"], "R", "train*").selections == (Selection("4711"),)


def test_filters_narrow_down_what_was_named() -> None:
    choice = Choice.parse(["all"], "R,PD", "train*")
    assert choice.matches(M.RUNNING, "train7", ())
    assert not choice.matches(M.FAILED, "train7", ())
    assert not choice.matches(M.RUNNING, "eval", ())
    assert not choice.matches(M.RUNNING, "Train7", ())


def test_ended_members_are_meant_only_where_their_states_were_asked_for() -> None:
    assert not Choice.parse(["all"]).wants_ended
    assert not Choice.parse(["all"], "RUNNING").wants_ended
    assert Choice.parse(["all"], "RUNNING,FAILED").wants_ended
    assert Choice.parse(["all"], ended=True).wants_ended
