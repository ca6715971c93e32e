"""Members start in whichever pack of their submission has room; what was emptied is cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.store.member_states import read_emptied
from slurm_colloc.store.pack_directory import read_slurm_job_id
from slurm_colloc.store.written_ends import read_runner
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import write_settings

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=50M", "--time=10")
NOTE = 'echo "start $SLURM_ARRAY_TASK_ID ${SLURM_COLLOC_PACK##*/}" >>"runs/$SLURM_ARRAY_TASK_ID"'
END = 'echo "end $SLURM_ARRAY_TASK_ID" >>"runs/$SLURM_ARRAY_TASK_ID"'


@pytest.fixture(scope="module")
def one_gpu() -> Iterator[Sandbox]:
    with running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=16) as sandbox:
        yield sandbox


@pytest.fixture
def user(one_gpu: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(one_gpu, accounts[0]) as found:
        (found.home / "runs").mkdir()
        os.chown(found.home / "runs", found.uid, found.gid)
        yield found


_LAUNCHER = """\
#!{python}
# The runner, in which room for more was measured.
import sys
from slurm_colloc.runtime.take_over_members import MemberTakeOver
MemberTakeOver.find_room = lambda self, view: max(0, {room} - len(view.running))
from slurm_colloc.runtime import __main__ as entry
sys.exit(entry.main(sys.argv[4:]))
"""


def say_room(user: CsubUser, room: int) -> None:
    """Each pack that has begun has measured that so many members fit."""
    launcher = user.home / "runner.py"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, room=room))
    launcher.chmod(0o755)
    write_settings(user, node_python=str(launcher))


def read_runs(user: CsubUser, number: int | str) -> list[list[str]]:
    return [line.split() for line in user.output(f"runs/{number}").splitlines()]


@pytest.mark.smoke
def test_twelve_unknown_jobs_end_in_one_slurm_job_where_they_fit(user: CsubUser) -> None:
    say_room(user, 12)
    show = 'echo "$SLURM_JOB_ID" >"runs/id.$SLURM_ARRAY_TASK_ID"'
    user.script(
        "work.sh", f"{NOTE}; {show}; until [ -e end ]; do sleep 0.1; done; {END}; echo done"
    )
    job_id = user.submit(*OPTIONS, "--array=1-12", "work.sh")
    packs = sorted((user.state / "packs").glob("*"))
    assert len(packs) == 3
    user.wait_for_states(job_id, "RUNNING")
    wait_until(lambda: "PENDING" not in list_slurm_states(user, job_id), "both are cancelled")
    assert sorted(set(list_slurm_states(user, job_id))) == ["CANCELLED", "RUNNING"]
    assert [bool(read_emptied(pack)) for pack in packs] == [False, True, True]
    # One that waits for the whole submission waits for members, and not for Slurm's jobs.
    (user.home / "end").touch()
    assert user.csub("wait", job_id).returncode == 0
    rows = user.members(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert sorted(rows) == list(range(1, 13))
    began_in = {read_runs(user, number)[0][2] for number in rows}
    assert len(began_in) == 1
    for number in rows:
        assert [line[0] for line in read_runs(user, number)] == ["start", "end"]
        assert user.output(f"slurm-{job_id}_{number}.out") == "done\n"
    # What has moved has the number that it was given, and is found by it.
    ids = {number: user.output(f"runs/id.{number}").strip() for number in rows}
    assert len({*ids.values()}) == 12
    assert ids[12] == job_id
    for number in range(1, 12):
        assert user.csub("why", ids[number]).stdout.startswith(f"{job_id}/{number} ")
    # The sweep finds nothing to tell of.
    assert "never started" not in user.csub("queue").stderr


def test_an_array_starts_in_the_pack_of_an_earlier_one_of_its_kind_under_its_own_ids(
    user: CsubUser,
) -> None:
    say_room(user, 12)
    elsewhere = user.home / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, user.uid, user.gid)
    note, end = (text.replace("runs/", "runs/$SLURM_ARRAY_JOB_ID.") for text in (NOTE, END))
    body = """
    n=$SLURM_ARRAY_TASK_ID; me=${SLURM_ARRAY_JOB_ID}_$n
    echo "$SLURM_COLLOC_MEMBER $1"
    scontrol show job "$me" | tr " " "\n" | grep -E "^StdOut="
    [ "$1 $n" != "b 3" ] || scancel "$me"
    """
    wait = "until [ -e end.$1.$n ]; do sleep 0.1; done"
    user.script("work.sh", f"cd {user.home}; {note}\n{body}\n{wait}; {end}")
    first = user.submit(*OPTIONS, "--join", "--array=1-8", "work.sh", "a")
    user.wait_for_states(first, "RUNNING")
    work = str(user.home / "work.sh")
    second = user.submit(*OPTIONS, "--join", f"--chdir={elsewhere}", "--array=1-4", work, "b")
    other = user.submit(*OPTIONS, "--array=1-2", work, "b")
    # Each that ends makes room for one that waits.
    for number in range(1, 5):
        (user.home / f"end.a.{number}").touch()
    wait_until(lambda: "PENDING" not in list_slurm_states(user, second), "it is emptied")
    assert set(list_slurm_states(user, second)) == {"CANCELLED"}
    user.wait_for_states(second, {1: "RUNNING", 2: "RUNNING", 3: "CANCELLED", 4: "RUNNING"})
    # Who did not say that it may leave its submission waits for its own GPU.
    assert set(list_slurm_states(user, other)) == {"PENDING"}
    user.csub("cancel", other)
    # What ends one submission leaves the other alone, though both are in one Slurm job.
    user.csub("cancel", f"{second}/4", first)
    user.wait_for_states(first, dict.fromkeys(range(5, 9), "CANCELLED"))
    for number in (1, 2):
        (user.home / f"end.b.{number}").touch()
    user.wait_for_states(second, {1: "COMPLETED", 2: "COMPLETED", 3: "CANCELLED", 4: "CANCELLED"})
    taker = read_runs(user, f"{first}.5")[0][2]
    for number in range(1, 5):
        runs = read_runs(user, f"{second}.{number}")
        assert [line[0] for line in runs] == (["start"] if number > 2 else ["start", "end"])
        assert runs[0][2] == taker
        name = f"{elsewhere}/slurm-{second}_{number}.out"
        said = user.output(name).splitlines()
        assert said[0] == f"{second}/{number} b"
        assert f"StdOut={name}" in said
        shown = user.csub("show", f"{second}/{number}").stdout
        assert f"{second}/{number}" in shown
        assert user.csub("logs", f"{second}/{number}").stdout == user.output(name)
    rows = user.members(second)
    assert sorted(rows) == [1, 2, 3, 4]
    assert {row["member"] for row in rows.values()} == {f"{second}/{n}" for n in range(1, 5)}
    assert user.csub("wait", second, check=False).returncode != 0
    assert user.csub("wait", first, check=False).returncode != 0
    check_reports(user, first, second, taker)
    assert "never started" not in user.csub("queue").stderr
    # Its own packs are empty by now, and yet what is tried again is like it.
    for number in (4, 5):
        (user.home / f"end.b.{number}").touch()
    user.csub("retry", f"{second}/4")
    user.wait_for_states(second, {5: "COMPLETED"})


def check_reports(user: CsubUser, first: str, second: str, taker: str) -> None:
    """Each submission's report tells of its own members, and where they ran."""
    report = user.csub("report", second).stdout
    assert f"All 4 ran in the pack of {first}." in report
    assert f"{first}/" not in report
    told = json.loads(user.csub("report", second, "--json").stdout)
    ran_in = {pack["pack_id"]: {m["id"] for m in pack["members"] if m["started_at"]}
              for pack in told}  # fmt: skip
    assert ran_in.pop(taker) == {f"{second}/{n}" for n in range(1, 5)}
    assert not any(ran_in.values())
    detail = " ".join(user.csub("report", second, "--detail").stdout.split())
    assert f"Ran here: {second}/1-4 Sharing" in detail
    detail = " ".join(user.csub("report", first, "--detail").stdout.split())
    assert f"Ran here: {first}/1-8 Sharing" in detail


def list_slurm_states(user: CsubUser, job_id: str) -> list[str]:
    """Of the elements of an array; of those cancelled before their start Slurm keeps one record."""
    rows = user.run(["squeue", "-h", "-r", "--states=all", "-o%i %T"]).stdout.splitlines()
    return [row.split()[1] for row in rows if row.split()[0].partition("_")[0] == job_id]


def test_a_pack_whose_good_end_is_needed_completes_at_once_and_empty(user: CsubUser) -> None:
    say_room(user, 12)
    user.script("work.sh", f"{NOTE}; until [ -e end ]; do sleep 0.1; done; {END}")
    job_id = user.submit(*OPTIONS, "--array=1-8", "work.sh")
    after = user.run(
        ["sbatch", "--parsable", f"--dependency=afterok:{job_id}", "--wrap=echo after"]
    ).stdout.strip()
    user.wait_for_states(job_id, "RUNNING")
    packs = sorted((user.state / "packs").glob("*"))
    assert [bool(read_emptied(pack)) for pack in packs] == [False, True]
    empty = str(read_slurm_job_id(packs[1]))
    (user.home / "end").touch()
    user.csub("wait", job_id)
    wait_until(lambda: user.output(f"slurm-{after}.out") == "after\n", "what waited has run")
    shown = user.csub("show", empty)
    assert f"{empty} has no members left: other packs took them over" in shown.stderr
    assert not (packs[1] / "attempt").exists()
    assert "CANCELLED" not in list_slurm_states(user, job_id)


def test_who_is_cancelled_stays_so_wherever_it_waits(user: CsubUser) -> None:
    say_room(user, 12)
    user.script("work.sh", f"{NOTE}; until [ -e end ]; do sleep 0.1; done; {END}")
    # Until both are said no pack begins, which would take them over.
    blocker = user.run(["sbatch", "--parsable", "--gres=gpu:1", "--wrap=sleep 600"]).stdout.strip()
    job_id = user.submit(*OPTIONS, "--array=1-12", "work.sh")
    user.csub("cancel", f"{job_id}/11")
    user.csub("hold", f"{job_id}/12")
    user.run(["scancel", blocker])
    user.wait_for_states(job_id, dict.fromkeys(range(1, 11), "RUNNING"))
    user.csub("cancel", f"{job_id}/10")
    user.wait_for_states(job_id, {10: "CANCELLED", 11: "CANCELLED", 12: "PENDING"})
    user.csub("cancel", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    assert read_runs(user, 11) == read_runs(user, 12) == []


@pytest.mark.long
def test_three_hundred_members_run_once_each_whatever_runners_are_killed(
    accounts: tuple[str, ...],
) -> None:
    with (
        running_sandbox(nodes=2, gpus_per_node=2, cpus_per_node=32) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        (user.home / "runs").mkdir()
        os.chown(user.home / "runs", user.uid, user.gid)
        say_room(user, 15)
        user.script("quick.sh", f"{NOTE}; sleep 0.$((RANDOM % 8)); {END}")
        job_id = user.submit(*OPTIONS, "--degree=15", "--requeue", "--array=1-300", "quick.sh")
        packs = sorted((user.state / "packs").glob("*"))
        assert len(packs) == 20
        killed: set[str] = set()
        source = random.Random(1)
        deadline = time.monotonic() + 500
        while time.monotonic() < deadline:
            rows = user.members(job_id)
            if all(row["state"] == "COMPLETED" for row in rows.values()):
                break
            # The last ones are let be, so that it comes to an end.
            if len(killed) < 12:
                killed |= kill_one(user, source)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}, user.describe(job_id)
        assert len(rows) == 300
        homes = set()
        for number in range(1, 301):
            runs = read_runs(user, number)
            starts = [line[2] for line in runs if line[0] == "start"]
            assert ["end", str(number)] in runs, number
            homes.add((number, starts[0]))
            # What started again was in a pack whose runner was killed.
            assert set(starts[:-1]) <= killed, (number, runs)
        assert killed
        # They did not all start where they were planned.
        assert len({pack for _, pack in homes}) < 20


def kill_one(user: CsubUser, source: random.Random) -> set[str]:
    """Kill the runner of a pack that runs, or have Slurm requeue it; the pack's id."""
    alive = []
    for pack in sorted((user.state / "packs").glob("*")):
        with contextlib.suppress(Exception):
            if (pack / "runner.json").exists() and not (pack / "ended.json").exists():
                alive.append(pack)
    if not alive:
        return set()
    pack = source.choice(alive)
    if source.random() < 0.5:
        runner = read_runner(pack)
        if runner is None or not Path(f"/proc/{runner.pid}").exists():
            return set()
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)
    else:
        administrate(user, "scontrol", "requeue", str(read_slurm_job_id(pack)), check=False)
    return {pack.name}


@pytest.mark.long
def test_members_of_three_arrays_run_once_each_in_whichever_pack_and_runners_are_killed(
    accounts: tuple[str, ...],
) -> None:
    with (
        running_sandbox(nodes=1, gpus_per_node=2, cpus_per_node=32) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        (user.home / "runs").mkdir()
        os.chown(user.home / "runs", user.uid, user.gid)
        say_room(user, 12)
        note, end = (t.replace("runs/", "runs/$SLURM_ARRAY_JOB_ID.") for t in (NOTE, END))
        user.script("quick.sh", f"{note}; sleep 0.$((RANDOM % 8)); {end}")
        words = (*OPTIONS, "--join", "--requeue", "--array=1-30", "quick.sh")
        job_ids = [user.submit(*words) for _ in range(3)]
        killed: set[str] = set()
        source = random.Random(2)
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            states = {row["state"] for each in job_ids for row in user.members(each).values()}
            if states == {"COMPLETED"}:
                break
            if len(killed) < 6:
                killed |= kill_one(user, source)
        assert states == {"COMPLETED"}, [user.describe(each) for each in job_ids]
        homes: dict[str, set[str]] = {}
        for job_id in job_ids:
            assert sorted(user.members(job_id)) == list(range(1, 31))
            for number in range(1, 31):
                runs = read_runs(user, f"{job_id}.{number}")
                starts = [line[2] for line in runs if line[0] == "start"]
                assert ["end", str(number)] in runs, (job_id, number)
                assert set(starts[:-1]) <= killed, (job_id, number, runs)
                homes.setdefault(starts[-1], set()).add(job_id)
                assert (user.home / f"slurm-{job_id}_{number}.out").exists()
        # Some ran in the Slurm job of another array.
        assert any(len(each) > 1 for each in homes.values()), homes
