"""The inbox protocol: nothing is lost and nothing runs twice, whatever is interleaved."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.errors import StateError
from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import DirectoryOperations, format_number

from .protocol_model import Protocol, Violation, explore

CASES = 10_000
REAL_PROTOCOL = Protocol()


@pytest.mark.exhaustive
def test_ten_thousand_random_histories_keep_every_promise() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        try:
            world = explore(random.Random(seed), REAL_PROTOCOL)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        seen["joined"] += len(world.entered) > 0
        seen["came too late"] += len(world.elsewhere) > 0
        seen["withdrawn"] += len(world.withdrawn) > 0
        seen["fenced"] += world.attempt > 1
        seen["ran twice"] += len({number for number, _ in world.runs}) < len(world.runs)
        seen["closed"] += len(world.ended_well) > 0
    # The histories really reach what they are meant to reach.
    assert all(count > CASES // 100 for count in seen.values()), seen


@pytest.mark.exhaustive
@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_histories_that_hypothesis_looks_for_keep_every_promise(source: random.Random) -> None:
    explore(source, REAL_PROTOCOL)


def _enter_without_looking(pack: str, number: int, fs: DirectoryOperations) -> bool:
    name = format_number(number)
    try:
        fs.rename(f"{pack}/members/{name}/entry.json", f"{pack}/inbox/{name}.json")
    except OSError:
        return False
    return True


def _enter_hoping(pack: str, number: int, fs: DirectoryOperations) -> bool:
    _enter_without_looking(pack, number, fs)
    return True


def _take_without_looking(pack: str, number: int, fs: DirectoryOperations) -> bool:
    name = format_number(number)
    try:
        fs.rename(f"{pack}/inbox/{name}.json", f"{pack}/members/{name}/taken")
    except OSError:
        return False
    return True


def _take_hoping(pack: str, number: int, fs: DirectoryOperations) -> bool:
    _take_without_looking(pack, number, fs)
    return True


def _withdraw_without_looking(pack: str, number: int, fs: DirectoryOperations) -> bool:
    name = format_number(number)
    try:
        fs.rename(f"{pack}/inbox/{name}.json", f"{pack}/members/{name}/cancelled")
    except OSError:
        return False
    return True


def _withdraw_by_a_mark(pack: str, number: int, fs: DirectoryOperations) -> bool:
    with contextlib.suppress(OSError):
        fs.mkdir(f"{pack}/members/{format_number(number)}/cancelled")
    return fs.exists(f"{pack}/members/{format_number(number)}/cancelled")


def _close_with_all_that_is_in_it(pack: str, fs: DirectoryOperations) -> bool:
    # What shutil.rmtree does.
    with contextlib.suppress(OSError):
        for name in fs.listdir(f"{pack}/inbox"):
            fs.rename(f"{pack}/inbox/{name}", f"{pack}/{name}")
        fs.rmdir(f"{pack}/inbox")
    return not fs.exists(f"{pack}/inbox")


def _close_when_it_looks_empty(pack: str, fs: DirectoryOperations) -> bool:
    return not inbox.list_waiting(pack, fs)


def _close_without_looking(pack: str, fs: DirectoryOperations) -> bool:
    try:
        fs.rmdir(f"{pack}/inbox")
    except OSError:
        return False
    return True


def _claim_by_looking(pack: str, number: int, fs: DirectoryOperations) -> bool:
    path = f"{pack}/members/{format_number(number)}"
    if fs.exists(path):
        return False
    with contextlib.suppress(FileExistsError):
        fs.mkdir(path)
    return True


MUTANTS = {
    "enter does not look for its source": {"enter": _enter_without_looking},
    "enter takes every failure for a lost answer": {"enter": _enter_hoping},
    "take ignores lost answers": {"take": _take_without_looking},
    "take takes every failure for a lost answer": {"take": _take_hoping},
    "withdraw ignores lost answers": {"withdraw": _withdraw_without_looking},
    "withdraw leaves the entry in the inbox": {"withdraw": _withdraw_by_a_mark},
    "close removes what is in the inbox": {"close": _close_with_all_that_is_in_it},
    "close looks instead of removing": {"close": _close_when_it_looks_empty},
    "close does not look after a failure": {"close": _close_without_looking},
    "claim looks before it makes": {"claim_number": _claim_by_looking},
    "the runner does not look again after closing": {"rescans_after_closing": False},
}


def _explore_many(protocol: Protocol) -> None:
    for seed in range(CASES):
        explore(random.Random(seed), protocol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protocol_with_a_fault_is_caught(mutant: str) -> None:
    protocol = dataclasses.replace(REAL_PROTOCOL, **MUTANTS[mutant])  # type: ignore[arg-type]
    with pytest.raises(Violation):
        _explore_many(protocol)


# -- the same on a real file system, with real processes ------------------------------------------

JOINERS = 6
JOINS = 60


def _make_pack(root: Path) -> str:
    pack = root / "pack"
    (pack / "inbox").mkdir(parents=True)
    (pack / "members").mkdir()
    return str(pack)


def _join_many(pack: str, report: str, go: Event, joins: int) -> None:
    """In a process of its own: join again and again, and write down each answer."""
    go.wait()
    number = 1
    with Path(report).open("w") as answers:
        for _ in range(joins):
            while not inbox.claim_number(pack, number):
                number += 1
            entry = Path(pack, "members", format_number(number), "entry.json")
            entry.write_text("{}")
            answers.write(f"{number} {inbox.enter(pack, number)}\n")


def _run(pack: str, report: str, go: Event, least: int) -> None:
    """In a process of its own: take members, and close once enough of them came."""
    go.wait()
    taken: list[int] = []
    while True:
        waiting = inbox.list_waiting(pack) or []
        taken += [number for number in waiting if inbox.take(pack, number)]
        if len(taken) >= least and inbox.close(pack):
            break
    Path(report).write_text(" ".join(str(number) for number in taken))


def _run_to_their_end(processes: Sequence[BaseProcess], go: Event) -> None:
    for process in processes:
        process.start()
    go.set()
    try:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("least", [0, JOINERS * JOINS // 2, JOINERS * JOINS])
def test_real_processes_lose_nothing_while_the_pack_closes(tmp_path: Path, least: int) -> None:
    pack = _make_pack(tmp_path)
    context = multiprocessing.get_context("fork")
    go = context.Event()
    reports = [tmp_path / f"joiner{index}" for index in range(JOINERS)]
    processes: list[BaseProcess] = [
        context.Process(target=_join_many, args=(pack, str(report), go, JOINS))
        for report in reports
    ]
    processes.append(context.Process(target=_run, args=(pack, str(tmp_path / "runner"), go, least)))
    _run_to_their_end(processes, go)
    answers = [line.split() for report in reports for line in report.read_text().splitlines()]
    entered = {int(number) for number, inside in answers if inside == "True"}
    refused = {int(number) for number, inside in answers if inside == "False"}
    taken = [int(word) for word in (tmp_path / "runner").read_text().split()]
    assert len(answers) == len(entered | refused) == JOINERS * JOINS
    assert sorted(taken) == sorted(entered)
    assert inbox.list_taken(pack) == sorted(entered)
    assert inbox.list_waiting(pack) is None
    assert all(
        Path(pack, "members", format_number(number), "entry.json").exists() for number in refused
    )


def _withdraw_all(pack: str, report: str, go: Event, numbers: list[int]) -> None:
    go.wait()
    won = [number for number in numbers if inbox.withdraw(pack, number)]
    Path(report).write_text(" ".join(str(number) for number in won))


def test_each_member_is_either_taken_or_withdrawn_when_both_are_tried_at_once(
    tmp_path: Path,
) -> None:
    pack = _make_pack(tmp_path)
    numbers = list(range(1, 301))
    for number in numbers:
        assert inbox.claim_number(pack, number)
        Path(pack, "members", format_number(number), "entry.json").write_text("{}")
        assert inbox.enter(pack, number)
    context = multiprocessing.get_context("fork")
    go = context.Event()
    # The one from the front and the other from the back meet in the middle.
    reports = [tmp_path / "cancel", tmp_path / "runner"]
    processes: list[BaseProcess] = [
        context.Process(target=_withdraw_all, args=(pack, str(reports[0]), go, numbers[::-1])),
        context.Process(target=_run, args=(pack, str(reports[1]), go, 0)),
    ]
    _run_to_their_end(processes, go)
    withdrawn, taken = ([int(word) for word in report.read_text().split()] for report in reports)
    assert sorted(withdrawn + taken) == numbers


def test_a_failure_to_look_is_not_taken_for_absence(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StateError, match="cannot look at"):
        inbox.REAL.exists(f"{loop}/entry.json")
    assert not inbox.REAL.exists(f"{tmp_path}/none/entry.json")
    assert not inbox.REAL.exists(f"{__file__}/entry.json")
    os.symlink("nowhere", tmp_path / "dangling")  # noqa: PTH211
    assert inbox.REAL.exists(f"{tmp_path}/dangling")
