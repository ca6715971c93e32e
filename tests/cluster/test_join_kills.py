"""csub, Slurm's controller or the disk give out in the middle of a join: all of it, or nothing."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

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
    list_unentered,
    name_member,
    read_field,
    read_lines,
    show,
    start_shell,
    use_processes,
    write_script,
)

pytestmark = pytest.mark.slurm

ROOMY = ("--join", "--open=never", "--parsable", "--degree=4", "--pack-size=90")
"""One pack takes all of them, four at a time."""


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[Sandbox]:
    """One node with one GPU; its controller is given up on soon."""
    with running_sandbox(
        nodes=1, gpus_per_node=1, cpus_per_node=16, extra_conf=("MessageTimeout=2",)
    ) as sandbox:
        yield sandbox


@pytest.fixture
def small(small_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the cluster with one GPU, which a job of theirs has."""
    with user_of(small_cluster, accounts[0]) as somebody:
        write_script(somebody)
        use_processes(somebody)
        block(somebody)
        yield somebody


def free(user: CsubUser) -> None:
    """Give the GPU back."""
    user.run(["scancel", "--name=blocker"])


# -- csub is killed --------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_kill_at_any_step_of_a_join_leaves_the_joiner_in_or_out(small: CsubUser) -> None:
    if not Path("/usr/bin/strace").exists():
        pytest.skip("strace is not installed")
    first = name_member(small, small.csub(*ROOMY, "train.sh", "first").stdout)
    answers = {"first": first}
    killed = []
    for kind in ("mkdir", "rename", "unlink", "rmdir", "flock", "write"):
        for count in itertools.count(1):
            argument = f"{kind}-{count}"
            ended = small.run(
                ["strace", "-o", "/dev/null", "-e", f"trace={kind}", "-e",
                 f"inject={kind}:signal=KILL:when={count}", "csub", *ROOMY, "train.sh", argument],
                check=False,
            )  # fmt: skip
            if ended.returncode == 0:
                answers[argument] = name_member(small, ended.stdout)
                break
            assert ended.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), ended.stderr
            killed.append(argument)
            assert set(answers.values()) <= set(list_in_state(small))
            assert list_held_locks(small) == []
        answers[f"after-{kind}"] = name_member(
            small, small.csub(*ROOMY, "train.sh", f"after-{kind}").stdout
        )
        assert [path for path in list_unentered(small) if ".tmp" not in path] == []
        assert check_slurm_has_room(small) == 1
    assert len(killed) >= 15
    # One more that leaves something for the end of the pack.
    small.run(
        ["strace", "-o", "/dev/null", "-e", "trace=rename", "-e",
         "inject=rename:signal=KILL:when=3", "csub", *ROOMY, "train.sh", "unfinished"],
        check=False,
    )  # fmt: skip
    assert list_unentered(small) != []
    inside = list_in_state(small)
    assert set(map(job_of, inside)) == {job_of(first)}
    free(small)
    finish_all(small)
    runs = list_runs(small)
    assert all(len(members) == 1 for members in runs.values()), runs
    assert sorted(member for (member,) in runs.values()) == inside
    assert {argument: runs[argument] for argument in answers} == {
        argument: [member] for argument, member in answers.items()
    }
    assert set(runs) - set(answers) <= set(killed)
    assert {row["state"] for row in show(small, [job_of(first)]).values()} == {"COMPLETED"}
    assert list_leftovers(small) == []
    assert list_held_locks(small) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_while_slurm_is_asked_keeps_the_pack_locked_until_it_has_answered(
    small: CsubUser, moment: str
) -> None:
    first = join(small, "train.sh", "first")
    with gates(small) as folder:
        (folder / f"stop-at-{moment}").touch()
        csub = small.start(["csub", "--join", "--open=never", "--parsable", "train.sh", "killed"])
        wait_until((folder / moment).exists, "scontrol is there")
        csub.kill()
        csub.communicate()
        # A late answer must not undo what the next one asks for.
        (path,) = list_packs(small).values()
        assert list_held_locks(small) == [str(path / "lock")]
        (folder / f"stop-at-{moment}").unlink()
        calls = [
            small.start(["csub", "--join", "--open=never", "--parsable", "train.sh", name])
            for name in ("a", "b")
        ]
        time.sleep(0.5)
        (folder / "go").touch()
        answers = {"first": first}
        for name, call in zip("ab", calls, strict=True):
            answers[name] = name_member(small, call.communicate(timeout=60)[0])
    job_id = job_of(first)
    assert sorted(answers.values()) == [f"{job_id}/{number}" for number in (1, 2, 3)]
    assert check_slurm_has_room(small) == 1
    assert read_field(small, job_id, "%C %j") == "3 train.sh"
    free(small)
    finish_all(small)
    assert list_runs(small) == {name: [member] for name, member in answers.items()}
    assert list_leftovers(small) == []


def test_a_pack_that_grew_for_a_killed_joiner_runs_the_others(small: CsubUser) -> None:
    first = join(small, "train.sh", "first")
    job_id = job_of(first)
    with gates(small) as folder:
        (folder / "stop-at-after").touch()
        csub = small.start(["csub", "--join", "--open=never", "--parsable", "train.sh", "killed"])
        wait_until((folder / "after").exists, "the request has grown")
        csub.kill()
        csub.communicate()
    wait_until(lambda: list_held_locks(small) == [], "scontrol has ended")
    assert read_field(small, job_id, "%C %j") == "2 train.sh"
    free(small)
    finish_all(small)
    assert list_runs(small) == {"first": [first]}
    assert list(show(small, [job_id])) == [first]
    assert list_leftovers(small) == []


@pytest.mark.smoke
def test_ctrl_c_while_slurm_is_asked_takes_the_joiner_out_again(small: CsubUser) -> None:
    first = join(small, "train.sh", "first")
    job_id = job_of(first)
    with gates(small) as folder:
        (folder / "stop-at-before").touch()
        csub = small.start(["csub", "--join", "--open=never", "train.sh", "second"])
        wait_until((folder / "before").exists, "scontrol is there")
        csub.send_signal(signal.SIGINT)
        (folder / "go").touch()
        out, err = csub.communicate(timeout=60)
    assert (csub.returncode, out) == (130, "")
    (number,) = small.list_joined(job_id)
    assert err == f"csub: error: interrupted; {number} had joined and has been cancelled\n"
    assert show(small, [job_id])[f"{job_id}/2"]["state"] == "CANCELLED"
    free(small)
    finish_all(small)
    assert list_runs(small) == {"first": [first]}
    assert list_leftovers(small) == []


def test_ctrl_c_that_ends_scontrol_too_submits_nothing_elsewhere(small: CsubUser) -> None:
    first = join(small, "train.sh", "first")
    jobs = small.run(["squeue", "-h", "--me", "--format=%i"]).stdout
    with gates(small) as folder:
        (folder / "stop-at-before").touch()
        csub = small.start(["csub", "--join", "--open=never", "train.sh", "second"])
        wait_until((folder / "before").exists, "scontrol is there")
        (scontrol,) = Path(f"/proc/{csub.pid}/task/{csub.pid}/children").read_text().split()
        csub.send_signal(signal.SIGINT)
        os.kill(int(scontrol), signal.SIGTERM)
        out, err = csub.communicate(timeout=60)
    assert (csub.returncode, out) == (130, "")
    assert err == "csub: error: interrupted; nothing was submitted\n"
    assert list_in_state(small) == [first]
    assert list_unentered(small) == []
    assert small.run(["squeue", "-h", "--me", "--format=%i"]).stdout == jobs


def has_failed(user: CsubUser, job_id: str) -> bool:
    """Slurm has ended a job as failed."""
    return read_field(user, job_id, "%T") == "FAILED"


@pytest.mark.exhaustive
def test_kill_at_any_step_of_a_sweep_submits_again_once(small: CsubUser) -> None:
    if not Path("/usr/bin/strace").exists():
        pytest.skip("strace is not installed")
    free(small)
    good = (small.home / "settings.toml").read_text()
    kills = 0
    packs = []
    expected = []
    for kind in ("rename", "unlink"):
        for count in itertools.count(1):
            # Slurm ends the pack at once, and its runner seems to have begun.
            (small.home / "settings.toml").write_text(f'{good}node_python = "/bin/false"\n')
            names = [f"{kind}-{count}-{letter}" for letter in "ab"]
            pack = small.submit("pack", *(f"train.sh {name}" for name in names))
            (small.home / "settings.toml").write_text(good)
            wait_until(functools.partial(has_failed, small, pack), "it fails")
            attempt = list_packs(small)[pack] / "attempt"
            attempt.write_text("1\n")
            os.chown(attempt, small.uid, small.gid)
            expected += names
            ended = small.run(
                ["strace", "-o", "/dev/null", "-e", f"trace={kind}", "-e",
                 f"inject={kind}:signal=KILL:when={count}", "csub", "queue"],
                check=False,
            )  # fmt: skip
            # The next calls find what it has left, and do what it has not done.
            assert "not submitted again" not in small.csub("queue").stderr
            packs.append(pack)
            if ended.returncode == 0:
                break
            kills += 1
    assert kills >= 10
    finish_all(small)
    assert {row["state"] for row in show(small, packs).values()} == {"REQUEUED"}
    runs = list_runs(small)
    assert sorted(runs) == sorted(expected)
    assert all(len(members) == 1 for members in runs.values()), runs
    # A killed call may leave a file that it has not finished, but nothing that counts.
    assert [path for path in list_leftovers(small) if ".tmp" not in path] == []


# -- the controller --------------------------------------------------------------------------------


def restart_controller(sandbox: Sandbox, *, hard: bool) -> None:
    """Restart slurmctld; `hard`: it has no time to save what is new."""
    if hard:
        (pid,) = [d.pid for d in sandbox.status().daemons if d.name == "slurmctld" and d.pid]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "slurmctld is gone")
    else:
        sandbox.stop_controller()
    sandbox.start_controller()


@pytest.mark.parametrize("hard", [False, True], ids=["orderly", "killed"])
def test_joins_while_the_controller_restarts_are_all_there(
    small: CsubUser,
    hard: bool,
) -> None:
    first = name_member(small, small.csub(*ROOMY, "train.sh", "first").stdout)
    # Slurm keeps what it knows so far.
    restart_controller(small.sandbox, hard=False)
    words = " ".join(ROOMY)
    loop = (
        "i=0; until [ -e stop ]; do i=$((i+1)); name={shell}-$i;"
        f" if answer=$(csub {words} train.sh $name 2>>errors.{{shell}});"
        " then echo $name $answer >>answers.{shell};"
        " else echo $name >>failed.{shell}; sleep 0.2; fi; done"
    )
    shells = [start_shell(small, loop.format(shell=shell)) for shell in "ab"]
    try:
        for _ in range(4):
            time.sleep(1)
            restart_controller(small.sandbox, hard=hard)
        time.sleep(0.5)
        small.script("stop", "")
        for shell in shells:
            shell.wait(timeout=120)
    finally:
        small.script("stop", "")
        for shell in shells:
            shell.kill()
    pairs = map(str.split, read_lines(small, "answers.*"))
    answers = {"first": first} | {name: name_member(small, answer) for name, answer in pairs}
    failed = read_lines(small, "failed.*")
    errors = read_lines(small, "errors.*")
    assert len(answers) > 4
    assert len(set(answers.values())) == len(answers)
    assert not [line for line in errors if "Traceback" in line]
    # What was not answered and came later has its id now.
    small.csub("queue")
    inside = list_in_state(small)
    assert set(answers.values()) <= set(inside)
    free(small)
    finish_all(small)
    runs = list_runs(small)
    assert all(len(members) == 1 for members in runs.values()), runs
    assert set(runs) <= {*answers, *failed}
    rows = show(small, map(job_of, inside))
    for name, member in answers.items():
        if job_of(member) == job_of(first) or not hard:
            assert (rows[member]["state"], runs.get(name)) == ("COMPLETED", [member])
        else:
            # A job of the last seconds is lost with the controller, and shown to be.
            assert rows[member]["state"] in ("COMPLETED", "LOST")
            assert (rows[member]["state"] == "COMPLETED") == (name in runs)
    assert list_unentered(small) == []
    assert list_held_locks(small) == []


def test_a_pack_whose_growth_was_lost_runs_its_members_unbound(
    accounts: tuple[str, ...],
) -> None:
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        pytest.skip("one CPU cannot be too few")
    with (
        running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=cpus) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        write_script(user)
        block(user)
        # Enough for both and for their runner.
        first = join(user, "--mem=200M", "train.sh", "1")
        restart_controller(sandbox, hard=False)
        second = join(user, "--mem=200M", "train.sh", "2")
        job_id = job_of(first)
        assert second == f"{job_id}/2"
        restart_controller(sandbox, hard=True)
        if read_field(user, job_id, "%C") != "1":
            # It was saved in time: the same by other means.
            user.run(["scontrol", "update", f"JobId={job_id}", "NumCPUs=1", "CPUsPerTask=1"])
            user.run(["scontrol", "update", f"JobId={job_id}", "MinMemoryNode=200"])
        free(user)
        rows = user.finish(job_id)
        assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
        assert list_runs(user) == {"1": [first], "2": [second]}
        assert "the members want 2: they are not bound" in user.csub("show", job_id).stdout


# -- the disk --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(small: CsubUser) -> Iterator[CsubUser]:
    """The same user; the state lies on a file system of 256 KB."""
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    disk = small.home / "state"
    disk.mkdir()
    options = f"size=256k,uid={small.uid},gid={small.gid},mode=0700"
    argv = ["mount", "-t", "tmpfs", "-o", options, "none", str(disk)]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield small
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def look(user: CsubUser, job_id: str) -> tuple[object, ...]:
    """All that a join changes."""
    (path,) = list_packs(user).values()
    return (
        list_in_state(user),
        list_unentered(user),
        (path / "pack.json").read_text(),
        sorted(path.name for path in (path / "inbox").iterdir()),
        read_field(user, job_id, "%C %m %l %j"),
        user.run(["squeue", "-h", "--me", "--format=%i"]).stdout,
    )


def test_a_disk_that_fills_at_any_write_of_a_join_leaves_the_pack_as_it_was(
    small_disk: CsubUser,
) -> None:
    user = small_disk
    first = join(user, "train.sh", "1")
    job_id = job_of(first)
    before = look(user, job_id)
    filler = user.home / "state" / "filler"
    refused = 0
    for free_pages in range(64):
        filler.write_bytes(b"")
        used = shutil.disk_usage(filler.parent)
        filler.write_bytes(b"x" * max(0, used.free - 4096 * free_pages))
        ended = user.run(
            ["csub", "--join", "--open=never", "--parsable", "train.sh", "2"], check=False
        )
        if ended.returncode == 0:
            break
        refused += 1
        assert ended.returncode == 6
        assert ended.stderr.startswith("csub: error: cannot ")
        assert ended.stderr.endswith(
            ": No space left on device: the disk is full: make room, then try again; nothing was "
            "left half-submitted\n"
        )
        assert ended.stderr.count("\n") == 1
        assert look(user, job_id) == before
    assert refused >= 4
    assert name_member(user, ended.stdout) == f"{job_id}/2"
    with contextlib.suppress(FileNotFoundError):
        filler.unlink()
    free(user)
    finish_all(user)
    assert list_runs(user) == {"1": [first], "2": [f"{job_id}/2"]}


def test_a_state_that_has_become_read_only_is_said_and_nothing_changes(
    small_disk: CsubUser,
) -> None:
    user = small_disk
    job_id = job_of(join(user, "train.sh", "1"))
    before = look(user, job_id)
    mount = ["mount", "-o", "remount,ro", str(user.home / "state")]
    subprocess.run(mount, check=True)
    try:
        ended = user.run(["csub", "--join", "--open=never", "train.sh", "2"], check=False)
        assert look(user, job_id) == before
    finally:
        subprocess.run([*mount[:2], "remount,rw", mount[3]], check=True)
    assert ended.returncode == 6
    assert ended.stderr.startswith("csub: error: cannot write ")
    assert ended.stderr.endswith(
        ": Read-only file system: the file system is read-only: set state_dir in the settings to "
        "another path\n"
    )
    assert ended.stderr.count("\n") == 1
    assert join(user, "train.sh", "2") == f"{job_id}/2"
