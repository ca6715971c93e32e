"""Lines of queue, history and top: arguments, groups, totals, colours, chosen fields, keys."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.cli.top_command import scroll
from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.job import read_parameters
from slurm_colloc.model.member import MemberId, MemberState
from slurm_colloc.report.terminal_tables import (
    count_states,
    describe_arguments,
    format_to_end,
    group_rows,
)
from slurm_colloc.store.atomic_files import hold_lock

from ..calls import UserWithoutSlurm
from ..report.generated import Truth, make_pack
from ..report.test_data import set_arguments

EVIL = "x\x1b]0;evil\x07"


class UserAtTerminal(UserWithoutSlurm):
    """Somebody who presses keys."""

    def on_terminal(self, *words: str, keys: str = "", **variables: str) -> str:
        """What a call shows on a terminal; `keys` are pressed once it has shown something."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.home)
            argv = [sys.executable, "-P", "-m", "slurm_colloc", *words]
            variables = {"PYTHONPATH": os.pathsep.join(sys.path), "LINES": "12", **variables}
            os.execve(sys.executable, argv, {**self.environment, **variables})
        seen, pending = b"", [key.encode() for key in keys]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:
                break
            seen += part
            if pending and b"q quits" in seen:
                os.write(terminal, pending.pop(0))
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, seen
        return seen.decode()


@pytest.fixture
def person(tmp_path: Path) -> UserAtTerminal:
    return UserAtTerminal(tmp_path, TERM="xterm-256color")


def make_sweep(person: UserAtTerminal, *, running: bool = False, members: int = 3) -> Path:
    truths = [Truth(n, 0, 60, lambda _: 9) for n in range(1, members + 1)]
    pack = make_pack(person.state, truths, job_id="L1", running=running,
                     names=["sweep"] * members)  # fmt: skip
    for number in range(1, members + 1):
        set_arguments(pack, number, "--data", "/scratch/a/long/path", "--lr", f"0.{number}", EVIL)
    return pack


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--lr", "0.1", "-b", "32"), {"lr": "0.1", "b": "32"}),
        (("--lr=0.1", "optim.wd=1e-3", "+seed=3"), {"lr": "0.1", "optim.wd": "1e-3", "seed": "3"}),
        (("--amp", "--lr", "-1", "file", "--", "x"), {"amp": "true", "lr": "-1", "arg1": "file",
                                                      "arg2": "x"}),
        (("--lr=1", "--lr=2", "--", "a=b c"), {"lr": "2", "a": "b c"}),
        ((), {}),
    ],
)  # fmt: skip
def test_parameters_are_what_programs_take_them_for(
    arguments: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert read_parameters(arguments) == expected


def test_what_differs_within_a_submission_tells_members_apart() -> None:
    same = ("--data", "/scratch/a/long/path/to/data", "--epochs", "3")
    jobs = [("1", "a.sh", (*same, "--lr", "0.1")), ("1", "a.sh", (*same, "--lr", "0.2")),
            ("1", "b.sh", ("x y",)), ("2", "a.sh", same)]  # fmt: skip
    assert describe_arguments(jobs) == [
        "... --lr 0.1", "... --lr 0.2", "'x y'", "--data /scratch/a/long/path/to/data --epochs 3",
    ]  # fmt: skip


def test_equal_lines_of_one_submission_become_one() -> None:
    ids = [MemberId("7", n) for n in (1, 2, 3, 5)] + [MemberId("8", 1)]
    rows = [(str(i), "PENDING") for i in ids]
    rows[2] = (rows[2][0], "RUNNING")
    assert group_rows(ids, rows) == [
        ("7/1-2", "PENDING"), ("7/3", "RUNNING"), ("7/5", "PENDING"), ("8/1", "PENDING"),
    ]  # fmt: skip
    states = [MemberState.PENDING, MemberState.RUNNING, MemberState.PENDING]
    assert count_states(states) == "3 members: 2 PENDING, 1 RUNNING"
    assert count_states(states[:1]) == ""


def test_queue_and_history_tell_what_differs(person: UserAtTerminal) -> None:
    make_sweep(person)
    for words in (("queue", "--all"), ("history", "L1")):
        shown = person.csub(*words).stdout
        assert "ARGS" in shown.splitlines()[0]
        assert [re.search(r"--lr 0\.\d", line) is not None for line in shown.splitlines()] == [
            False, True, True, True,
        ]  # fmt: skip
        assert "/scratch" not in shown, "it is the same in all"
        assert "\x1b" not in shown
        assert "members:" not in shown, "a program that reads it gets members alone"


def test_on_a_terminal_there_are_totals_and_colours(person: UserAtTerminal) -> None:
    make_sweep(person)
    shown = person.on_terminal("queue", "--all")
    assert "3 members: 3 COMPLETED" in shown
    assert "\x1b[90mCOMPLETED" in shown
    plain = person.on_terminal("queue", "--all", NO_COLOR="1")
    assert "3 members: 3 COMPLETED" in plain
    assert "\x1b" not in plain


def test_a_format_is_squeues_or_sacct_s(person: UserAtTerminal) -> None:
    pack = make_sweep(person)
    done = person.csub("queue", "--all", "-o", "%.8i|%-5j|%T", "--noheader")
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
    lines = person.csub("queue", "--all", "-o", "%.8i|%3j|%T %N").stdout.splitlines()
    assert lines[0] == "   JOBID|NAM|STATE NODELIST"
    assert lines[1] == "    L1/1|swe|COMPLETED node1"
    shown = person.csub("history", "L1", "--format=jobid,State%4,ExitCode,Arguments").stdout
    assert shown.splitlines()[1].startswith("L1/1|COMP 0:0|--data /scratch/a/long/path --lr 0.1 ")
    assert "\\x1b]0;evil\\x07" in shown
    assert person.csub("queue", "--all", "-o", "%i", "--noheader").stdout.split() == [
        "L1/1", "L1/2", "L1/3",
    ]  # fmt: skip
    for wrong in ("%Q", "JobID,Moon", ",", "%"):
        done = person.csub("queue", "--all", f"--format={wrong}")
        assert (done.returncode, done.stdout) == (2, ""), wrong
        assert len(done.stderr.splitlines()) == 1
    assert (pack / "pack.json").exists()


def write_latest(pack: Path, members: int, steps: int = 90) -> None:
    figures = {"start": 1, "steps": steps, "steps_per_s": 9.0, "window_s": 10.0}
    value = {"schema": 1, "at": time.time(), "gpus": {},
             "members": {str(n): figures for n in range(1, members + 1)}}  # fmt: skip
    (pack / "latest.json").write_text(json.dumps(value))


def test_the_time_to_the_end_is_told_where_earlier_runs_tell_the_steps(
    person: UserAtTerminal,
) -> None:
    truth = Truth(1, 0, 120, lambda _: 9)
    before = make_pack(person.state, [truth], submission="20250101-000000-a", job_id="L7")
    assert learn_from_pack(before) == []
    pack = make_pack(person.state, [Truth(1, 0, 60, lambda _: 9), Truth(2, 0, 60, lambda _: 9)],
                     job_id="L8", running=True)  # fmt: skip
    with hold_lock(pack / "alive", 0) as lock:
        assert lock
        write_latest(pack, 2)
        queue = person.csub("queue").stdout.splitlines()
        # About 1,000 steps, of which 90 are made, 9 a second. Of the second nothing is known.
        assert "TO_END" in queue[0]
        assert "2 min" in queue[1]
        assert "min" not in queue[2]
        top = person.csub("top", "--once").stdout
        assert "TO_END" in top
        assert "1 pack, 2 members: 2 RUNNING" in top
        write_latest(pack, 2, steps=10_000)
        assert "TO_END" not in person.csub("queue").stdout, "it has made more than a whole run"


def test_times_are_round() -> None:
    assert [format_to_end(s) for s in (None, 1.0, 33.0, 95.0, 7500.0)] == [
        "", "5 s", "35 s", "2 min", "2 h 05 min",
    ]  # fmt: skip


def test_top_scrolls_and_q_ends_it(person: UserAtTerminal) -> None:
    pack = make_sweep(person, running=True, members=20)
    with hold_lock(pack / "alive", 0) as lock:
        assert lock
        write_latest(pack, 20)
        shown = person.on_terminal("top", keys="Gq")
    assert "csub top" in shown
    assert "20 members: 20 RUNNING" in shown
    assert "L1/20" in shown, "the end was scrolled to"
    assert re.search(r"scroll: \d+-\d+ of", shown)
    assert shown.rstrip().endswith("\x1b[?1049l"), "the screen is as it was"
    assert "evil\x07" not in shown


def test_a_page_stays_within_the_lines() -> None:
    assert scroll(0, b"\x1b[A", 30, 10) == 0
    assert scroll(0, b"j", 30, 10) == 1
    assert scroll(5, b" ", 30, 10) == 14
    assert scroll(14, b"\x1b[6~", 30, 10) == 20
    assert scroll(3, b"G", 30, 10) == 20
    assert scroll(3, b"G", 5, 10) == 0
    assert scroll(3, b"x", 30, 10) == 3
