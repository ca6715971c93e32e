"""The runner of a pack is killed: what had not ended starts again, where Slurm may requeue it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.node_processes import (
    ProcessId,
    identify,
    is_alive,
    list_processes,
    read_uid,
)

from ..bed import CsubUser, administrate
from ..wait_until import wait_until
from .mps import (
    explained,
    journal,
    kill,
    pack_directory,
    read_parent,
    runner_pid,
    write_settings,
)

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=100M", "--time=10")
NOTE = 'echo "$SLURM_COLLOC_MEMBER" >>ran.txt; echo "start restart=${SLURM_RESTART_COUNT:-none}"'
# It answers TERM as after a checkpoint, and is not done.
WORK = f"{NOTE}; trap 'echo saved; exit 0' TERM; until [ -e end ]; do sleep 0.1; done"
KILLED = "its runner was killed by signal 9"


def start_pack(user: CsubUser, *options: str) -> str:
    """A pack whose first member has failed, two run, and the fourth waits for a place."""
    user.script("fails.sh", f"{NOTE}; exit 3")
    user.script("work.sh", WORK)
    user.script("later.sh", NOTE)
    options = ("--degree=2", "--pack-size=4", *OPTIONS, *options)
    job_id = user.submit("pack", *options, "fails.sh", "work.sh", "work.sh", "later.sh")
    user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING", 3: "RUNNING", 4: "PENDING"})
    wait_for_work(user, job_id, 1)
    return job_id


def wait_for_work(user: CsubUser, job_id: str, starts: int) -> None:
    """Wait until the second and the third member work at their so manieth start."""
    with explained(user, job_id):
        wait_until(
            lambda: all(len(list_starts(user, job_id, n)) == starts for n in (2, 3)),
            f"members 2 and 3 of {job_id} have started {starts} times",
        )


def list_starts(user: CsubUser, job_id: str, number: int) -> list[str]:
    lines = user.output(f"slurm-{job_id}_{number}.out").splitlines()
    return [line for line in lines if line.startswith("start ")]


def read_attempt(user: CsubUser, job_id: str) -> int:
    return int((pack_directory(user, job_id) / "attempt").read_text())


def read_slurm(user: CsubUser, job_id: str) -> str:
    """The state that Slurm itself shows."""
    argv = ["squeue", "-h", "-j", job_id, "--states=all", "-o%T"]
    return user.run(argv, check=False).stdout.strip()


def wait_until_gone(user: CsubUser, *processes: ProcessId | None) -> None:
    assert None not in processes
    wait_until(
        lambda: not any(process is not None and is_alive(process) for process in processes),
        "its processes have ended",
    )
    if user.uid == 0:
        return
    # The user whom the tests made for this owns no other processes.
    wait_until(
        lambda: not [p for p in list_processes() if read_uid(p.id.pid) == user.uid],
        "nothing of the user runs",
    )


@contextlib.contextmanager
def closed_partition(user: CsubUser) -> Iterator[None]:
    """What is in the queue stays there: on a busy machine no look at it is quick enough."""
    administrate(user, "scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        yield
    finally:
        administrate(user, "scontrol", "update", "PartitionName=gpu", "State=UP")


def states_of(rows: dict[int, dict[str, Any]]) -> list[str]:
    return [rows[number]["state"] for number in sorted(rows)]


@pytest.mark.parametrize("launcher", [pytest.param("srun", marks=pytest.mark.smoke), "process"])
def test_what_had_not_ended_starts_again_and_what_had_ended_does_not(
    user: CsubUser, launcher: str
) -> None:
    write_settings(user, launcher=launcher)
    job_id = start_pack(user)
    old, guard = runner_pid(user, job_id), read_parent(runner_pid(user, job_id))
    ended = user.members(job_id)[1]
    with closed_partition(user):
        processes = [kill(old), identify(guard)]
        wait_until(lambda: read_slurm(user, job_id) == "PENDING", "Slurm has it in its queue again")
        rows = user.members(job_id)
        assert states_of(rows) == ["FAILED", "PENDING", "PENDING", "PENDING"]
        told = user.csub("why", f"{job_id}/2").stdout
        assert f"PENDING: to be started again ({KILLED}): " in told
        assert KILLED not in user.csub("why", f"{job_id}/4").stdout
    wait_for_work(user, job_id, 2)
    wait_until(lambda: not any(p is not None and is_alive(p) for p in processes), "they are gone")
    assert read_attempt(user, job_id) == 2
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert states_of(rows) == ["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    assert rows[1] == {**ended, "slurm_state": rows[1]["slurm_state"]}
    assert [rows[number]["starts"] for number in (1, 2, 3, 4)] == [1, 2, 2, 1]
    assert Counter(user.output("ran.txt").split()) == {
        f"{job_id}/1": 1, f"{job_id}/2": 2, f"{job_id}/3": 2, f"{job_id}/4": 1,
    }  # fmt: skip
    for number in (2, 3):
        # Members have their time to end, as at every requeue, and go on in the same file.
        said = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        assert list_starts(user, job_id, number) == ["start restart=none", "start restart=1"]
        assert (said[0], said[-1]) == ("start restart=none", "start restart=1")
        if user.sandbox.status().cgroup_version:
            # Elsewhere Slurm's TERM reaches srun, too, which has its step killed.
            assert "saved" in said[1:-1]
        assert rows[number]["evidence"] == [f"restarted: {KILLED}"]
        assert rows[number]["cause"] == "success"
    assert list_starts(user, job_id, 4) == ["start restart=none"]
    assert [event["requeued"] for event in journal(user, job_id, "runner_killed")] == [True]
    shown = user.csub("show", f"{job_id}/2").stdout
    assert f"Evidence:    restarted: {KILLED}\n" in shown
    assert "  Runner:   killed by signal 9 at " in shown
    assert "; its pack was requeued\n" in shown
    wait_until_gone(user, *processes)
    assert list(pack_directory(user, job_id).glob("members/*/env")) == []
    assert list((user.state / "open").iterdir()) == []


@pytest.mark.smoke
def test_where_it_may_not_be_requeued_what_lives_ends_and_the_rest_is_lost_and_it_is_said_why(
    user: CsubUser,
) -> None:
    job_id = start_pack(user, "--no-requeue")
    ended = user.members(job_id)[1]
    runner = runner_pid(user, job_id)
    guard = identify(read_parent(runner))
    processes = [guard, kill(runner)]
    wait_until(lambda: journal(user, job_id, "runner_killed"), "its guard has noted it")
    assert guard is not None
    assert is_alive(guard)
    assert states_of(user.members(job_id)) == ["FAILED", "RUNNING", "RUNNING", "PENDING"]
    (user.home / "end").touch()
    rows = user.wait_for_states(job_id, {1: "FAILED", 2: "COMPLETED", 3: "COMPLETED", 4: "LOST"})
    assert rows[1] == {**ended, "slurm_state": "FAILED"}
    assert rows[4]["reason"] == f"{KILLED}; it may not be requeued"
    assert f"LOST: {KILLED}; it may not be requeued" in user.csub("why", job_id).stdout
    assert "; it may not be requeued\n" in user.csub("show", job_id).stdout
    assert user.csub("wait", job_id, check=False).returncode == 3
    wait_until_gone(user, *processes)
    assert read_attempt(user, job_id) == 1
    # As with every batch script that is killed.
    details = user.run(["scontrol", "show", "job", job_id]).stdout
    assert "JobState=FAILED" in details
    assert "Restarts=0" in details
    assert "ExitCode=0:9" in details


def test_a_pack_whose_runner_is_killed_again_and_again_starts_twice_more_at_most(
    user: CsubUser,
) -> None:
    job_id = start_pack(user)
    for attempt in (1, 2, 3):
        wait_for_work(user, job_id, attempt)
        assert read_attempt(user, job_id) == attempt
        user.wait_for_states(job_id, {2: "RUNNING", 3: "RUNNING"})
        kill(runner_pid(user, job_id))
    wait_until(lambda: len(journal(user, job_id, "runner_killed")) == 3, "its guard has noted it")
    (user.home / "end").touch()
    # Who never started is submitted again, as after every end of a pack.
    states = {1: "FAILED", 2: "COMPLETED", 3: "COMPLETED", 4: "REQUEUED"}
    rows = user.wait_for_states(job_id, states)
    assert [rows[number]["starts"] for number in (2, 3)] == [3, 3]
    assert "; it was restarted 2 times before\n" in user.csub("show", job_id).stdout
    events = journal(user, job_id, "runner_killed")
    assert [event["requeued"] for event in events] == [True, True, False]
    assert len(journal(user, job_id, "attempt")) == 3


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_pack_that_is_cancelled_at_the_same_time_is_cancelled(
    user: CsubUser, moment: str
) -> None:
    scontrol, scancel = shutil.which("scontrol"), shutil.which("scancel")
    if moment == "between":
        # The cancel comes after the guard has seen the pack running, and before it is requeued.
        folder = user.home / "bin"
        folder.mkdir()
        program = folder / "scontrol"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = requeue ]; then touch {user.home}/asked; '
            f'{scancel} "$3"; fi\nexec {scontrol} "$@"\n'
        )
        program.chmod(0o755)
        user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    job_id = start_pack(user)
    runner = runner_pid(user, job_id)
    processes = [identify(runner), identify(read_parent(runner))]
    if moment == "before":
        user.run(["scancel", job_id])
    kill(runner)
    if moment == "after":
        user.run(["scancel", job_id])
    rows = user.wait_for_states(job_id, dict.fromkeys((2, 3, 4), "CANCELLED"))
    assert rows[1]["state"] == "FAILED"
    assert read_slurm(user, job_id) == "CANCELLED"
    assert (user.home / "asked").exists() is (moment == "between")
    wait_until_gone(user, *processes)
    assert read_attempt(user, job_id) == 1
    assert Counter(user.output("ran.txt").split()).most_common(1)[0][1] == 1
    if moment != "after":
        assert list(pack_directory(user, job_id).glob("killed.*")) == []
        assert journal(user, job_id, "runner_killed") == []


def test_only_the_pack_of_an_array_whose_runner_was_killed_is_requeued(user: CsubUser) -> None:
    user.script("work.sh", WORK)
    job_id = user.submit(*OPTIONS, "--degree=2", "--pack-size=2", "--array=1-4", "work.sh")
    user.wait_for_states(job_id, "RUNNING")
    packs = sorted(user.state.glob("packs/*"), key=lambda path: int(path.suffix[1:]))
    assert len(packs) == 2
    runners = [json.loads((pack / "runner.json").read_text())["pid"] for pack in packs]
    ids = [
        dict(word.split(b"=", 1) for word in environment.split(b"\0") if b"=" in word)
        for environment in (Path(f"/proc/{pid}/environ").read_bytes() for pid in runners)
    ]
    # One of them has the id of the array itself, which Slurm takes for all of it.
    [index] = [n for n in (0, 1) if ids[n][b"SLURM_JOB_ID"] == ids[n][b"SLURM_ARRAY_JOB_ID"]]
    kill(runners[index])
    wait_until(lambda: (packs[index] / "attempt").read_text() == "2\n", "it has started again")
    assert (packs[1 - index] / "attempt").read_text() == "1\n"
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert states_of(rows) == ["COMPLETED"] * 4
    again = [row["starts"] for row in rows.values()]
    assert sorted(again) == [1, 1, 2, 2]
    assert again[index * 2 : index * 2 + 2] == [2, 2]


def test_without_its_guard_a_pack_ends_as_a_killed_batch_script_does(user: CsubUser) -> None:
    job_id = start_pack(user)
    runner = runner_pid(user, job_id)
    processes = [identify(runner), kill(read_parent(runner), signal.SIGKILL)]
    rows = user.wait_for_states(job_id, {1: "FAILED", 2: "LOST", 3: "LOST"})
    assert rows[2]["reason"] == "its Slurm job is gone, and how it ended is not known"
    assert len(journal(user, job_id, "attempt")) == 1
    wait_until_gone(user, *processes)


def test_a_job_alone_is_its_batch_script_and_is_not_requeued(user: CsubUser) -> None:
    user.script("work.sh", WORK)
    job_id = user.submit(*OPTIONS[1:], "--requeue", "work.sh")
    user.wait_for_states(job_id, "RUNNING")
    runner = runner_pid(user, job_id)
    # Above it is slurmstepd: no guard stands between them.
    assert "slurmstepd" in Path(f"/proc/{read_parent(runner)}/cmdline").read_text()
    kill(runner)
    rows = user.wait_for_states(job_id, "LOST")
    assert rows[1]["starts"] == 1
    assert read_attempt(user, job_id) == 1


# -- ends that no runner has noted -----------------------------------------------------------------


def start_waiting(user: CsubUser, *options: str) -> str:
    """A pack of two that run until a file says so to each."""
    body = (
        f"{NOTE}; trap 'echo saved; exit 0' TERM; "
        'until [ -e "end.$SLURM_COLLOC_MEMBER_NUMBER" ]; do sleep 0.1; done; '
        'echo "ended"; exit "$(cat "end.$SLURM_COLLOC_MEMBER_NUMBER")"'
    )
    user.script("waits.sh", f"SLURM_COLLOC_MEMBER_NUMBER=${{SLURM_COLLOC_MEMBER##*/}}; {body}")
    job_id = user.submit("pack", "--degree=2", *OPTIONS, *options, "waits.sh", "waits.sh")
    user.wait_for_states(job_id, "RUNNING")
    wait_until(lambda: all(list_starts(user, job_id, n) for n in (1, 2)), "both are up")
    return job_id


def let_end(user: CsubUser, job_id: str, number: int, status: int) -> None:
    """Let a member end by itself, and wait until its wrapper has written it."""
    (user.home / f"end.{number}").write_text(f"{status}\n")
    folder = pack_directory(user, job_id) / "members" / f"{number:04d}"
    wait_until(lambda: list(folder.glob("run.*.exit")), f"the end of member {number} is written")


@pytest.mark.parametrize("status", [0, 3])
def test_what_has_ended_while_its_runner_hung_does_not_run_again(
    user: CsubUser, status: int
) -> None:
    job_id = start_waiting(user)
    runner = runner_pid(user, job_id)
    os.kill(runner, signal.SIGSTOP)
    let_end(user, job_id, 1, status)
    kill(runner)
    wait_until(lambda: read_attempt(user, job_id) == 2, "its pack starts again")
    with explained(user, job_id):
        wait_until(lambda: len(list_starts(user, job_id, 2)) == 2, "the other starts again")
    (user.home / "end.2").write_text("0\n")
    rows = user.finish(job_id)
    assert states_of(rows) == ["FAILED" if status else "COMPLETED", "COMPLETED"]
    assert [rows[number]["starts"] for number in (1, 2)] == [1, 2]
    assert rows[1]["exit_code"] == {"code": status, "signal": 0}
    assert rows[1]["cause"] == ("exit code" if status else "success")
    assert len(list_starts(user, job_id, 1)) == 1


def test_what_has_ended_while_its_runner_hung_is_not_lost_with_its_pack(user: CsubUser) -> None:
    job_id = start_waiting(user, "--no-requeue")
    runner = runner_pid(user, job_id)
    os.kill(runner, signal.SIGSTOP)
    let_end(user, job_id, 1, 0)
    kill(runner)
    wait_until(lambda: journal(user, job_id, "runner_killed"), "its guard has noted it")
    let_end(user, job_id, 2, 3)
    rows = user.wait_for_states(job_id, {1: "COMPLETED", 2: "FAILED"})
    assert rows[2]["exit_code"] == {"code": 3, "signal": 0}
    assert rows[1]["exit_code"] == {"code": 0, "signal": 0}
    assert rows[1]["ended_at"] is not None
    # It is written down, not only shown.
    attempt = read_attempt(user, job_id)
    state = pack_directory(user, job_id) / "members" / "0001" / f"state.{attempt}.json"
    assert json.loads(state.read_text())["state"] == "COMPLETED"


def test_a_pack_whose_members_have_all_ended_is_not_started_again(user: CsubUser) -> None:
    job_id = start_waiting(user)
    runner = runner_pid(user, job_id)
    os.kill(runner, signal.SIGSTOP)
    for number in (1, 2):
        let_end(user, job_id, number, 0)
    kill(runner)
    rows = user.finish(job_id)
    assert states_of(rows) == ["COMPLETED", "COMPLETED"]
    assert read_attempt(user, job_id) == 1
    assert [e["reason"] for e in journal(user, job_id, "runner_killed")] == [
        "all its members had ended"
    ]


@contextlib.contextmanager
def controller_away(user: CsubUser) -> Iterator[None]:
    """A cluster without slurmctld."""
    user.sandbox.stop_controller()
    try:
        yield
    finally:
        user.sandbox.start_controller()


def test_members_live_on_while_slurm_cannot_be_asked_and_their_ends_count(user: CsubUser) -> None:
    job_id = start_waiting(user)
    runner = runner_pid(user, job_id)
    with controller_away(user):
        guard = identify(read_parent(runner))
        assert guard is not None
        kill(runner)
        let_end(user, job_id, 1, 0)
        # That of a guard which has asked once would have ended long ago.
        time.sleep(12)
        assert is_alive(guard)
        folder = pack_directory(user, job_id) / "members" / "0002"
        assert not list(folder.glob("run.*.exit"))
    with explained(user, job_id):
        # A controller that has just come back looks for what may start every minute.
        again = "the other starts again"
        wait_until(lambda: len(list_starts(user, job_id, 2)) == 2, again, patience_s=180)
    (user.home / "end.2").write_text("0\n")
    rows = user.finish(job_id)
    assert states_of(rows) == ["COMPLETED", "COMPLETED"]
    assert [rows[number]["starts"] for number in (1, 2)] == [1, 2]
    assert "saved" in user.output(f"slurm-{job_id}_2.out").splitlines()
    assert [event["requeued"] for event in journal(user, job_id, "runner_killed")] == [True]
