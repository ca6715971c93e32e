"""Many at once, and joins that race with all else that happens to a pack: every answer is kept."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .joins import (
    block,
    check_slurm_has_room,
    finish_all,
    gates,
    job_of,
    join,
    list_held_locks,
    list_in_state,
    list_leftovers,
    list_packs,
    list_runs,
    name_member,
    name_members,
    read_field,
    read_lines,
    show,
    start_shell,
    use_processes,
    write_script,
)
from .test_joining import on_terminal

pytestmark = pytest.mark.slurm

SUBMISSIONS = 120
WAITING = SUBMISSIONS * 3 // 5
SHELLS = 8


@pytest.fixture(scope="module")
def wide_cluster() -> Iterator[Sandbox]:
    """One node with two GPUs and more CPUs than the machine has."""
    with running_sandbox(nodes=1, gpus_per_node=2, cpus_per_node=64) as sandbox:
        yield sandbox


@pytest.fixture
def wide(wide_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the cluster with two GPUs."""
    with user_of(wide_cluster, accounts[0]) as somebody:
        yield somebody


def count_answers(user: CsubUser) -> int:
    return len(read_lines(user, "answers.*"))


@pytest.mark.exhaustive
def test_five_hundred_submissions_from_eight_shells_are_neither_lost_nor_doubled(
    wide: CsubUser,
) -> None:
    write_script(wide)
    use_processes(wide)
    blockers = block(wide, 2)
    # Some join packs that wait, others packs that begin, run and end meanwhile.
    loop = (
        f"for i in $(seq {{shell}} {SHELLS} {SUBMISSIONS}); do"
        " answer=$(csub --join --degree=16 --parsable train.sh $i 2>>errors.{shell})"
        " || answer=failed;"
        " echo $i $answer >>answers.{shell}; done"
    )
    shells = [start_shell(wide, loop.format(shell=shell + 1)) for shell in range(SHELLS)]
    try:
        wait_until(lambda: count_answers(wide) >= WAITING, "most wait", patience_s=300)
        # From now on one that finds no pack waiting begins one, on a busy machine nearly each.
        packs = len(list_packs(wide))
        wide.run(["scancel", blockers[0]])
        for shell in shells:
            shell.wait(timeout=300)
    finally:
        for shell in shells:
            shell.kill()
            shell.wait()
    answers = dict(line.split() for line in read_lines(wide, "answers.*"))
    assert set(answers) == {str(number) for number in range(1, SUBMISSIONS + 1)}
    assert "failed" not in answers.values(), read_lines(wide, "errors.*")
    names = name_members(wide, answers.values())
    members = {argument: names[answer] for argument, answer in answers.items()}
    assert sorted(members.values()) == list_in_state(wide)
    check_slurm_has_room(wide)
    wide.run(["scancel", blockers[1]])
    finish_all(wide, patience_s=100)
    rows = show(wide, map(job_of, members.values()))
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert sorted(rows) == sorted(members.values())
    assert list_runs(wide) == {argument: [member] for argument, member in members.items()}
    assert packs < WAITING / 2
    assert list_leftovers(wide) == []
    assert list_held_locks(wide) == []


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "--join"])
def test_twenty_four_one_after_another_share_a_pack_that_has_cpus_for_them(
    wide: CsubUser, typed: bool
) -> None:
    write_script(wide)
    block(wide, 2)
    if typed:
        told = [on_terminal(wide, "--open=never", "train.sh", str(number)) for number in range(24)]
        # `(member 4711/1 in 1 pack, ...`, then `(4711/2, shares a pack with ...`.
        members = [re.findall(r"\((?:member )?(\d+/\d+)", text)[0] for text in told]
    else:
        members = [join(wide, "train.sh", str(number)) for number in range(24)]
    (job_id,) = set(map(job_of, members))
    assert members == [f"{job_id}/{number}" for number in range(1, 25)]
    assert check_slurm_has_room(wide) == 1
    assert read_field(wide, job_id, "%j %C") == "train.sh 24"


def test_twenty_four_at_once_do_too(wide: CsubUser) -> None:
    write_script(wide)
    block(wide, 2)
    calls = [
        wide.start(["csub", "--join", "--open=never", "--parsable", "train.sh", str(number)])
        for number in range(24)
    ]
    members = []
    for call in calls:
        out, err = call.communicate(timeout=120)
        assert call.returncode == 0, err
        members.append(name_member(wide, out))
    (job_id,) = set(map(job_of, members))
    assert sorted(members) == sorted(f"{job_id}/{number}" for number in range(1, 25))
    assert check_slurm_has_room(wide) == 1


# -- with the pack's start -------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_pack_that_starts_while_csub_hangs_does_not_wait_for_it(
    wide: CsubUser, moment: str
) -> None:
    write_script(wide)
    blockers = block(wide, 2)
    first = join(wide, "train.sh", "1")
    with gates(wide) as folder:
        (folder / f"stop-at-{moment}").touch()
        csub = wide.start(
            ["csub", "--join", "--open=never", "--parsable", "--explain", "train.sh", "2"]
        )
        wait_until((folder / moment).exists, "scontrol is there")
        wide.run(["scancel", *blockers])
        wait_until(lambda: list_runs(wide) == {"1": [first]}, "the pack goes on without it")
        (folder / "go").touch()
        out, err = csub.communicate(timeout=60)
    assert csub.returncode == 0, err
    reason = "it has just started" if moment == "after" else "Slurm does not let it grow"
    assert f"not joined: pack {job_of(first)}: {reason}" in err
    second = name_member(wide, out)
    assert job_of(second) != job_of(first)
    finish_all(wide)
    assert list_runs(wide) == {"1": [first], "2": [second]}
    assert {row["state"] for row in show(wide, map(job_of, (first, second))).values()} == {
        "COMPLETED"
    }
    assert list_leftovers(wide) == []


def test_who_is_refused_as_a_pack_starts_joins_it_as_it_runs(wide: CsubUser) -> None:
    write_script(wide, body="until [ -e end ]; do sleep 0.2; done")
    blockers = block(wide, 2)
    first = join(wide, "--open", "train.sh", "1")
    with gates(wide) as folder:
        (folder / "stop-at-before").touch()
        csub = wide.start(["csub", "--join", "--parsable", "--explain", "train.sh", "2"])
        wait_until((folder / "before").exists, "scontrol is there")
        wide.run(["scancel", *blockers])
        wait_until(lambda: list_runs(wide) == {"1": [first]}, "the pack goes on without it")
        (folder / "go").touch()
        out, err = csub.communicate(timeout=60)
    assert csub.returncode == 0, err
    second = name_member(wide, out)
    assert job_of(second) == job_of(first), err
    (wide.home / "end").touch()
    finish_all(wide)
    assert list_runs(wide) == {"1": [first], "2": [second]}


def test_a_pack_that_starts_while_somebody_joins_takes_him_along(wide: CsubUser) -> None:
    write_script(wide)
    blockers = block(wide, 2)
    first = join(wide, "train.sh", "1")
    (path,) = list_packs(wide).values()
    with gates(wide) as folder:
        (folder / "stop-at-after").touch()
        csub = wide.start(["csub", "--join", "--open=never", "--parsable", "train.sh", "2"])
        wait_until((folder / "after").exists, "the request has grown")
        wide.run(["scancel", *blockers])
        wait_until((path / "runner.json").exists, "the runner waits for the lock")
        (folder / "go").touch()
        out, _ = csub.communicate(timeout=60)
    second = name_member(wide, out)
    if second == f"{job_of(first)}/2":
        rows = wide.finish(job_of(first))
        assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
    finish_all(wide)
    assert list_runs(wide) == {"1": [first], "2": [second]}
    # On a machine that is not overloaded five seconds are enough.
    assert second == f"{job_of(first)}/2"


# -- with the end of the pack ----------------------------------------------------------------------


def test_joins_that_meet_the_last_members_end_run_once(wide: CsubUser) -> None:
    use_processes(wide)
    write_script(wide)
    chance = random.Random(4711)
    answers: dict[str, str] = {}
    for number in range(8):
        # The place of the first is free once it has ended; then the second is the last.
        text = (wide.home / "train.sh").read_text()
        wide.script(f"r{number}.sh", text + f'[ "$1" != stay{number} ] ||'
                    f" until [ -e end-{number} ]; do sleep 0.02; done")  # fmt: skip
        pack = wide.submit("pack", f"r{number}.sh first{number}", f"r{number}.sh stay{number}")
        wide.wait_for_states(pack, {1: "COMPLETED", 2: "RUNNING"})
        answers |= {f"first{number}": f"{pack}/1", f"stay{number}": f"{pack}/2"}
        calls = {}
        for name in (f"a{number}", f"b{number}"):
            time.sleep(chance.random() * 0.15)
            calls[name] = wide.start(
                ["csub", "--join", "--open=never", "--parsable", f"r{number}.sh", name]
            )
        time.sleep(chance.random() * 0.5)
        wide.script(f"end-{number}", "")
        for name, call in calls.items():
            out, err = call.communicate(timeout=60)
            assert call.returncode == 0, err
            answers[name] = name_member(wide, out)
    finish_all(wide)
    assert list_runs(wide) == {name: [member] for name, member in answers.items()}
    rows = show(wide, map(job_of, answers.values()))
    assert sorted(rows) == sorted(answers.values())
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert list_leftovers(wide) == []


def test_joins_that_meet_a_scancel_are_cancelled_or_run(wide: CsubUser) -> None:
    blockers = block(wide, 2)
    chance = random.Random(4712)
    answers: dict[str, str] = {}
    cancelled = []
    for number in range(10):
        write_script(wide, f"r{number}.sh", f": {number}")
        first = join(wide, f"r{number}.sh", f"first{number}")
        cancelled.append(first)
        name = f"a{number}"
        csub = wide.start(["csub", "--join", "--open=never", "--parsable", f"r{number}.sh", name])
        time.sleep(chance.random() * 0.5)
        wide.run(["scancel", job_of(first)])
        out, err = csub.communicate(timeout=60)
        assert csub.returncode == 0, err
        answers[name] = name_member(wide, out)
        # The round may have begun in a pack that an earlier one has left waiting.
        gone = [key for key in answers if job_of(answers[key]) == job_of(first)]
        cancelled.extend(map(answers.pop, gone))
    # Once in the other order: the pack is cancelled while its request grows, and after it.
    for moment in ("before", "after"):
        write_script(wide, f"{moment}.sh", f": {moment}")
        first = join(wide, f"{moment}.sh", f"first-{moment}")
        cancelled.append(first)
        with gates(wide) as folder:
            (folder / f"stop-at-{moment}").touch()
            csub = wide.start(
                ["csub", "--join", "--open=never", "--parsable", f"{moment}.sh", moment]
            )
            wait_until((folder / moment).exists, "scontrol is there")
            wide.run(["scancel", job_of(first)])
            (folder / "go").touch()
            out, err = csub.communicate(timeout=60)
            assert csub.returncode == 0, err
        gone = [key for key in answers if job_of(answers[key]) == job_of(first)]
        cancelled.extend(map(answers.pop, gone))
        for path in (folder, wide.home / "bin"):
            path.rename(path.with_name(f"{path.name}-{moment}"))
        member = name_member(wide, out)
        if moment == "before":
            answers[moment] = member
        else:
            cancelled.append(member)
            assert job_of(member) == job_of(first)
    write_script(wide, "last.sh", ": last")
    answers["last"] = join(wide, "last.sh", "last")
    wide.run(["scancel", *blockers])
    finish_all(wide)
    assert list_runs(wide) == {name: [member] for name, member in answers.items()}
    rows = show(wide, map(job_of, [*answers.values(), *cancelled]))
    assert {rows[member]["state"] for member in answers.values()} == {"COMPLETED"}
    assert {rows[member]["state"] for member in cancelled} == {"CANCELLED"}
    assert sorted(rows) == sorted([*answers.values(), *cancelled])
    assert list_leftovers(wide) == []
