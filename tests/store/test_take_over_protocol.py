"""Taking members over: each ends up in one place, is started once, and none is lost."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import DirectoryOperations, format_number
from slurm_colloc.store.member_states import choose_guest_number

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
    assert play(range(300), RULES)["taken over"] > 50


@pytest.mark.exhaustive
def test_ten_thousand_random_histories_keep_every_promise() -> None:
    seen = play(range(CASES), RULES)
    # The histories really reach what they are meant to reach.
    least = {
        "taken over": 1000,
        "started in a pack of another submission": 1000,
        "joined": 1000,
        "taken over from one that runs": 1000,
        "taken over in the last moment": 100,
        "submitted again": 1000,
        "finished by a later attempt": 30,
        "sent on by the sweep": 20,
        "cancelled on its way": 20,
        "cancel looked again": 20,
        "request forwarded": 10,
    }
    assert {name for name, count in least.items() if seen[name] < count} == set(), seen


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_histories_that_hypothesis_looks_for_keep_every_promise(source: random.Random) -> None:
    explore(source, RULES)


def _decide_blindly(
    source: str, taker: str, number: int, there: int, fs: DirectoryOperations
) -> bool:
    name = format_number(number)
    mark = f"over.{taker}" + (f"={there}" if there != number else "")
    for entry in (f"{source}/inbox/{name}.json", f"{source}/members/{name}/taken"):
        try:
            fs.rename(entry, f"{source}/members/{name}/{mark}")
        except OSError:
            continue
        return True
    return False


def _decide_hoping(
    source: str, taker: str, number: int, there: int, fs: DirectoryOperations
) -> bool:
    _decide_blindly(source, taker, number, there, fs)
    return True


def _begin_blindly(pack: str, number: int, fs: DirectoryOperations) -> bool:
    folder = f"{pack}/members/{format_number(number)}"
    try:
        fs.rename(f"{folder}/taken", f"{folder}/begun")
    except OSError:
        return False
    return True


def _begin_hoping(pack: str, number: int, fs: DirectoryOperations) -> bool:
    _begin_blindly(pack, number, fs)
    return True


def _move_blindly(
    source: str, taker: str, number: int, there: int, fs: DirectoryOperations
) -> bool:
    name, new_name = format_number(number), format_number(there)
    try:
        fs.rename(f"{source}/members/{name}", f"{taker}/members/{new_name}")
    except OSError:
        return False
    return True


def _number_without_the_attempt(_attempt: int, count: int) -> int | None:
    return choose_guest_number(1, count)


MUTANTS = {
    "deciding ignores lost answers": {"decide": _decide_blindly},
    "deciding takes every failure for a lost answer": {"decide": _decide_hoping},
    "beginning ignores lost answers": {"begin": _begin_blindly},
    "beginning takes every failure for a lost answer": {"begin": _begin_hoping},
    "moving ignores lost answers": {"move": _move_blindly},
    "it is decided without the lock of the pack": {"locks_the_source": False},
    "each attempt gives the same numbers": {"choose_guest_number": _number_without_the_attempt},
    "a joiner gets the number of one that has left": {"counts_those_that_left": False},
    "requests stay where the member was": {"forwards_requests": False},
    "csub cancel does not look where the member is now": {"looks_again_after_asking": False},
    "the sweep leaves what was decided": {"sweep_sends_on": False},
    "the sweep does not look who was to be cancelled": {"sweep_looks_for_requests": False},
}


def _explore_many(rules: Rules) -> None:
    for seed in range(CASES):
        explore(random.Random(seed), rules)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protocol_with_a_fault_is_caught(mutant: str) -> None:
    rules = dataclasses.replace(RULES, **MUTANTS[mutant])  # type: ignore[arg-type]
    with pytest.raises(Violation):
        _explore_many(rules)


# -- the same on a real file system, with real processes ------------------------------------------

MEMBERS = 200


def build_packs(root: Path) -> tuple[str, str]:
    packs = root / "s.1", root / "s.2"
    for pack in packs:
        (pack / "inbox").mkdir(parents=True)
        (pack / "members").mkdir()
    for number in range(1, MEMBERS + 1):
        folder = packs[0] / "members" / format_number(number)
        folder.mkdir()
        (folder / "spec.json").write_text("{}")
        (packs[0] / "inbox" / f"{format_number(number)}.json").write_text("{}")
    return str(packs[0]), str(packs[1])


def _begin_all(pack: str, report: str, go: Event) -> None:
    """In a process of its own: take all from the front, and begin each."""
    go.wait()
    waiting = inbox.list_waiting(pack) or []
    taken = [number for number in waiting if inbox.take(pack, number)]
    begun = [number for number in taken if inbox.begin(pack, number)]
    Path(report).write_text(" ".join(map(str, begun)))


def _take_all_over(source: str, taker: str, report: str, go: Event) -> None:
    """In a process of its own: take over all from the back, and begin each."""
    go.wait()
    begun = []
    for number in range(MEMBERS, 0, -1):
        is_mine = inbox.decide(source, taker, number) and inbox.move(source, taker, number)
        if is_mine and inbox.accept(taker, number):
            assert inbox.begin(taker, number)
            begun.append(number)
    Path(report).write_text(" ".join(map(str, begun)))


def _cancel_some(source: str, taker: str, report: str, go: Event) -> None:
    go.wait()
    done = [
        number
        for number in range(3, MEMBERS, 7)
        if inbox.withdraw(source, number)
        or inbox.withdraw_moving(source, number)
        or inbox.withdraw_moving(taker, number)
    ]
    Path(report).write_text(" ".join(map(str, done)))


def test_each_member_begins_in_one_pack_or_is_cancelled_when_all_is_tried_at_once(
    tmp_path: Path,
) -> None:
    source, taker = build_packs(tmp_path)
    context = multiprocessing.get_context("fork")
    go = context.Event()
    reports = [tmp_path / name for name in ("own", "taker", "cancel")]
    processes = [
        context.Process(target=_begin_all, args=(source, str(reports[0]), go)),
        context.Process(target=_take_all_over, args=(source, taker, str(reports[1]), go)),
        context.Process(target=_cancel_some, args=(source, taker, str(reports[2]), go)),
    ]
    for process in processes:
        process.start()
    go.set()
    try:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    ends = [[int(word) for word in report.read_text().split()] for report in reports]
    assert sorted(number for each in ends for number in each) == list(range(1, MEMBERS + 1))


def test_a_member_that_waits_or_was_taken_is_taken_over_and_one_that_has_begun_is_not(
    tmp_path: Path,
) -> None:
    source, taker = build_packs(tmp_path)
    assert inbox.take(source, 2)
    assert inbox.take(source, 3)
    assert inbox.begin(source, 3)
    assert inbox.list_taken(source) == [2, 3]
    assert [inbox.decide(source, taker, number) for number in (1, 2, 3, 999)] == [
        True,
        True,
        False,
        False,
    ]
    assert inbox.list_taken(source) == [3]
    assert not inbox.begin(source, 2)
    assert inbox.list_leaving(source) == {1: ("s.2", 1), 2: ("s.2", 2)}
    assert inbox.move(source, taker, 1)
    assert inbox.move(source, taker, 1)
    assert (inbox.list_arrived(taker), inbox.list_leaving(taker)) == ([1], {})
    assert inbox.list_taken(taker) == []
    assert inbox.accept(taker, 1)
    assert inbox.accept(taker, 1)
    assert inbox.list_taken(taker) == [1]
    assert inbox.withdraw_moving(source, 2)
    assert inbox.move(source, taker, 2)
    assert not inbox.accept(taker, 2)


def test_a_decision_is_undone_only_where_its_taker_is_gone(tmp_path: Path) -> None:
    source, taker = build_packs(tmp_path)
    assert inbox.decide(source, taker, 1)
    assert not inbox.give_back(source, 1, taker)
    assert inbox.find_taker(source, 1) == "s.2"
    for folder in ("inbox", "members", ""):
        Path(taker, folder).rmdir()
    assert inbox.give_back(source, 1, taker)
    assert (inbox.list_taken(source), inbox.list_moving(source)) == ([1], {})
