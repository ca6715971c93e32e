"""csub under the name sacct: tasks of a pack look as sbatch's own tasks do to Slurm's sacct."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from ..cluster.conftest import accounts
from ..wait_until import wait_until
from .accounting_sandbox import running_accounting
from .test_accounting import list_names

__all__ = ["accounts"]

pytestmark = pytest.mark.slurm

CSUB = Path(sys.executable).parent / "csub"
GO = 'while [ ! -e "$1" ]; do sleep 0.1; done; [ "$SLURM_ARRAY_TASK_ID" != 102 ]'
OPTIONS = (
    "--array=100-103", "--time=5", "--job-name=sweep", "--cpus-per-task=1",
    "--mem=100M",
)  # fmt: skip
FIELDS = "jobid,jobname,state,exitcode,ncpus,nodelist,reqcpus,reqmem,reason"
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("-X", "-P", "-j", "JOB", "-o", FIELDS),
    ("-P", "-j", "JOB", "-o", FIELDS),
    ("-X", "-p", "-n", "-j", "JOB", "--format=state,jobid"),
    ("-X", "-n", "--parsable2", "--delimiter=;", "-j", "JOB_101", "-o", "jobid,state"),
    ("-X", "-P", "-j", "JOB_101,JOB_102", "-o", "jobid,state"),
    ("-X", "-P", "-j", "JOB_101", "-j", "JOB_102", "-o", "jobid,state"),
    ("-X", "-P", "-j", "JOB", "-s", "F", "--state=R,CD", "-o", "jobid,state"),
    ("-X", "-P", "--name=sweep", "--name=other", "-o", "jobid,state"),
    ("-X", "-j", "JOB", "-o", "jobid,jobname%-12,state%5,exit"),
    ("-X", "-P", "--name=sweep", "-o", "jobid,state"),
    ("-X", "-P", "--name=other", "-o", "jobid,state"),
    ("-X", "-P", "-j", "JOB", "-s", "F", "-o", "jobid,state"),
    ("-P", "-j", "JOB_101.batch", "-o", "jobid,state"),
    ("-P", "-j", "JOB.batch", "-o", "jobid,state"),
    ("-X", "-P", "-S", "now-1hour", "-s", "CD", "-j", "JOB", "-o", "jobid"),
    ("-X", "-P", "-S", "now-1hour", "-E", "now", "-s", "CD", "-j", "JOB", "-o", "jobid"),
    ("-X", "-b", "-j", "JOB"),
    ("-X", "-j", "JOB"),
)
"""JOB is the array's id."""


@pytest.fixture(scope="module")
def user(accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    first = list_names(accounts)[0]
    told = ("add account lab cluster=sandbox", f"add user {first} account=lab cluster=sandbox")
    with running_accounting(prepare=told) as (_, sandbox):
        yield from serve(sandbox, first)


def serve(sandbox: Sandbox, name: str) -> Iterator[CsubUser]:
    """A user with a directory in which sacct is a link to csub."""
    with user_of(sandbox, name) as somebody:
        (somebody.home / "mybin").mkdir()
        (somebody.home / "mybin" / "sacct").symlink_to(CSUB)
        somebody.script("go.sh", GO)
        yield somebody


def ask(user: CsubUser, words: Sequence[str], job_id: str, *, linked: bool) -> list[str]:
    """What sacct says of one array, JOB for its id."""
    path = user.environment["PATH"]
    user.extra["PATH"] = f"{user.home / 'mybin'}:{path}" if linked else path
    try:
        answer = user.run(["sacct", *(word.replace("JOB", job_id) for word in words)])
    finally:
        del user.extra["PATH"]
    assert answer.stderr == ""
    lines = answer.stdout.split("\n")
    assert lines.pop() == ""
    head = [line for line in lines if not re.search(r"\d", line)]
    own = re.compile(rf"(?<![\w-]){job_id}(?=_)")
    # sacct's order of tasks is that of their raw numbers.
    return head + sorted(own.sub("JOB", line) for line in lines if own.search(line))


def test_tasks_are_told_of_as_sbatch_s_own(user: CsubUser) -> None:
    words = [*OPTIONS, "go.sh", "go"]
    control = user.run(["sbatch", "--parsable", *words]).stdout.strip()
    packed = user.submit("--gres=gpu:1", "--share=timeslice", "--degree=4", *words)
    states = ("-X", "-n", "-P", "-j", "JOB", "-o", "state")
    argv = ["sacct", *(word.replace("JOB", control) for word in states)]
    user.wait_for_states(packed, "RUNNING")
    wait_until(
        lambda: user.run(argv).stdout.split() == ["RUNNING"] * 4, "sacct to know of the tasks"
    )
    for question in QUESTIONS:
        if question[0] == "-X":
            expected = ask(user, question, control, linked=False)
            assert ask(user, question, packed, linked=True) == expected, question
    user.run(["touch", "go"])
    user.finish(packed)
    wait_until(lambda: "RUNNING" not in user.run(argv).stdout, "sacct to know of the ends")
    for question in QUESTIONS:
        expected = ask(user, question, control, linked=False)
        assert ask(user, question, packed, linked=True) == expected, question


def test_tasks_that_were_cancelled_or_ran_out_of_time_are_told_of_as_sbatch_s_own(
    user: CsubUser,
) -> None:
    words = [*OPTIONS, "--time=0:30", "--array=101-103", "go.sh", "gone"]
    user.script("go.sh", GO)
    control = user.run(["sbatch", "--parsable", *words]).stdout.strip()
    sharing = ("--gres=gpu:1", "--share=timeslice", "--degree=3", "--max-slowdown=1")
    packed = user.submit(*sharing, *words)
    user.wait_for_states(packed, "RUNNING")
    wait_until(
        lambda: user.run(["squeue", "-h", "-t", "R", "-r", "-j", control]).stdout.count("\n") == 3,
        "sbatch's tasks run",
    )
    user.run(["scancel", f"{control}_101"])
    user.csub("cancel", f"{packed}_101")
    user.finish(packed, patience_s=120)
    # The job's row comes before that of its script.
    argv = ["sacct", "-n", "-P", "-j", f"{control}.batch", "-o", "state,exitcode"]
    wait_until(
        lambda: user.run(argv).stdout == "CANCELLED|0:15\n" * 3,
        "the limit of sbatch's tasks",
        patience_s=120,
    )
    for question in (
        ("-P", "-j", "JOB", "-o", "jobid,state,exitcode"),
        ("-X", "-P", "-j", "JOB", "-s", "CA", "-o", "jobid,state"),
    ):
        expected = ask(user, question, control, linked=False)
        assert ask(user, question, packed, linked=True) == expected, question


def test_a_task_has_the_amounts_that_were_asked_for_it(user: CsubUser) -> None:
    words = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=100M", "--time=5", "--wrap", "true")
    control = user.run(["sbatch", "--parsable", *words]).stdout.strip()
    packed = user.submit("--share=timeslice", "--degree=2", "--array=5-6", *words)
    user.finish(packed)
    argv = ["sacct", "-X", "-n", "-P", "-j", control, "-o", "alloctres,reqtres,state"]
    wait_until(lambda: "COMPLETED" in user.run(argv).stdout, "sacct to know of the end")
    path = f"{user.home / 'mybin'}:{user.environment['PATH']}"
    expected = user.run(argv).stdout * 2
    argv[5] = packed
    # slurmdbd may hear of the pack's start later than of another job's end.
    wait_until(
        lambda: user.run(argv, environment={"PATH": path}).stdout == expected, "the same amounts"
    )


def test_a_task_has_times_of_its_own_and_nothing_that_was_measured_of_all(user: CsubUser) -> None:
    packed = user.submit(
        "--gres=gpu:1", "--share=timeslice", "--degree=2", "--array=5-6", "--wrap",
        "echo $SLURM_JOB_ID; sleep 1",
    )  # fmt: skip
    user.finish(packed)
    own = (user.home / f"slurm-{packed}_5.out").read_text().strip()
    form = "jobidraw,start,end,elapsedraw,maxrss,totalcpu,jobid"
    path = f"{user.home / 'mybin'}:{user.environment['PATH']}"
    argv = ["sacct", "-n", "-P", "-X", "-j", f"{packed}_5", "-o", form]
    rows = user.run(argv, environment={"PATH": path}).stdout.split("\n")
    fields = rows[0].split("|")
    # As in Slurm: the raw id is the task's own SLURM_JOB_ID.
    assert (fields[0], fields[6], rows[1:]) == (own, f"{packed}_5", [""])
    assert own != packed
    assert fields[1] < fields[2]
    assert int(fields[3]) >= 1
    assert fields[4:6] == ["", ""]


def test_what_csub_does_not_know_is_sacct_s(user: CsubUser) -> None:
    path = f"{user.home / 'mybin'}:{user.environment['PATH']}"
    user.submit("--gres=gpu:1", "--share=timeslice", "--array=1-2", "--wrap", "true")
    alone = user.run(["sbatch", "--parsable", "--array=1-2", "--wrap", "true"]).stdout.strip()
    argv = ["sacct", "-n", "-P", "-j", alone, "-o", "state"]
    # Each of two tasks has three rows; steps may come before their job.
    wait_until(
        lambda: user.run(argv).stdout.split() == ["COMPLETED"] * 6, "sacct to know of the ends"
    )
    for words in (["-j", alone], ["-e"], ["--wrong"], ["-j", alone, "-l"], ["-o", "nothing"]):
        behind = user.run(["sacct", *words], check=False)
        ended = user.run(["sacct", *words], check=False, environment={"PATH": path})
        assert (ended.returncode, ended.stdout) == (behind.returncode, behind.stdout)
        assert "Traceback" not in ended.stderr
