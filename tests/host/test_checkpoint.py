"""Checkpoints, their locks, and who is dead."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError, StateError, UsageProblem
from slurm_colloc.host.hooks.hook_job import (
    PREPARING,
    READY,
    UNDOING,
    Checkpoint,
    is_job_id,
    read_hook_job,
)
from slurm_colloc.host.hooks.recover_jobs import (
    STARTING_S,
    UNSEEN_S,
    find_death,
    find_jobs_of_cgroups,
    read_or_guess,
)
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.system.control_groups import Hierarchy, find_hierarchies, runs_inside_job

GPU = "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"


@pytest.fixture
def run(short_directory: Path) -> Iterator[RunDirectory]:
    found = RunDirectory(str(short_directory / "run"), makes=True)
    yield found
    found.close()


def make_checkpoint(job_id: str = "11", /, **changes: object) -> Checkpoint:
    values: dict[str, object] = {
        "uid": 1000,
        "gid": 100,
        "phase": READY,
        "mode": "mps",
        "gpus": (GPU,),
        "daemons": ("0",),
        "cgroups": ("/sys/fs/cgroup/slurm_colloc/n-11",),
        "compute_modes": {GPU: "DEFAULT"},
        "made_at": 1000.0,
        **changes,
    }
    return Checkpoint(job_id, **values)  # type: ignore[arg-type]


# -- files ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_back_as_it_was_written(run: RunDirectory) -> None:
    checkpoint = make_checkpoint(restart=2, seen=True)
    run.write(checkpoint)
    assert run.read("11") == checkpoint
    assert run.list_jobs() == ("11",)
    run.remove("11")
    assert run.read("11") is None
    run.remove("11")


def test_modes_are_roots_alone_whatever_the_umask(short_directory: Path) -> None:
    before = os.umask(0)
    try:
        run = RunDirectory(str(short_directory / "run"), makes=True)
        run.write(make_checkpoint())
        run.make_directory("11")
        run.write_setup("11", {"schema": 1})
    finally:
        os.umask(before)
    run.close()
    modes = {
        str(path.relative_to(run.path)): stat.S_IMODE(path.stat().st_mode)
        for path in Path(run.path).rglob("*")
    }
    assert modes == {
        "jobs": 0o700,
        "jobs/11.json": 0o600,
        "lock": 0o600,
        "11": 0o711,
        "11/setup.json": 0o644,
    }
    assert stat.S_IMODE(Path(run.path).stat().st_mode) == 0o755


def test_a_directory_that_others_may_write_is_not_used(short_directory: Path) -> None:
    path = short_directory / "run"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(NodeError, match="is not root's alone"):
        RunDirectory(str(path), makes=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
@pytest.mark.parametrize("name", ["run", "run/jobs"])
def test_a_directory_that_a_user_has_made_beforehand_is_not_used(
    short_directory: Path, name: str
) -> None:
    (short_directory / name).mkdir(parents=True)
    os.chown(short_directory / name, 65534, 65534)
    with pytest.raises(NodeError, match="is not root's alone"):
        RunDirectory(str(short_directory / "run"), makes=True)


def test_a_link_or_a_file_in_its_place_is_not_used(short_directory: Path) -> None:
    target = short_directory / "target"
    target.mkdir()
    (short_directory / "run").symlink_to(target)
    with pytest.raises((NodeError, OSError)):
        RunDirectory(str(short_directory / "run"), makes=True)
    assert list(target.iterdir()) == []
    (short_directory / "run").unlink()
    (short_directory / "run").write_text("")
    with pytest.raises(NodeError, match="not a directory"):
        RunDirectory(str(short_directory / "run"), makes=True)


def test_a_missing_directory_is_not_made_by_an_epilog(short_directory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunDirectory(str(short_directory / "run"), makes=False)
    assert list(short_directory.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": 1}', "\x00" * 100, '{"schema": "x"}'],
)
def test_a_damaged_checkpoint_is_told_and_undone_as_far_as_can_be_seen(
    run: RunDirectory, text: str
) -> None:
    Path(run.path, "jobs", "11.json").write_text(text)
    with pytest.raises(StateError, match="damaged"):
        run.read("11")
    guessed, problem = read_or_guess(run, "11")
    assert guessed is not None
    assert (guessed.phase, guessed.gpus) == (UNDOING, ())
    assert "damaged" in problem


def test_a_checkpoint_of_another_job_is_no_checkpoint(run: RunDirectory) -> None:
    run.write(make_checkpoint("12"))
    Path(run.path, "jobs", "12.json").rename(Path(run.path, "jobs", "11.json"))
    with pytest.raises(StateError, match="not of this job"):
        run.read("11")


def test_a_newer_checkpoint_is_said_to_be_one(run: RunDirectory) -> None:
    run.write(make_checkpoint())
    path = Path(run.path, "jobs", "11.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(StateError, match="newer version"):
        run.read("11")


def test_a_link_in_place_of_a_checkpoint_is_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_text("of root")
    path = Path(run.path, "jobs", "11.json")
    path.symlink_to(target)
    Path(run.path, "jobs", ".11.json").symlink_to(target)
    with pytest.raises(StateError, match="cannot be read"):
        run.read("11")
    run.write(make_checkpoint())
    assert target.read_text() == "of root"
    assert run.read("11") == make_checkpoint()


def test_only_numbers_are_jobs() -> None:
    assert is_job_id("1")
    assert is_job_id("4294967295")
    for text in ("", "0", "01", "-1", "1.json", "../1", "1\n", "٣", "12345678901", "a"):
        assert not is_job_id(text)


# -- locks ----------------------------------------------------------------------------------------


def hold(path: str, job_id: str, taken: object) -> None:
    run = RunDirectory(path, makes=False)
    with run.locked_job(job_id, 0.0):
        taken.set()  # type: ignore[attr-defined]
        # Nothing that is shared may be held when it is killed.
        signal.pause()


def test_one_hook_at_a_time_works_on_a_job(run: RunDirectory) -> None:
    context = multiprocessing.get_context("spawn")
    taken = context.Event()
    holder = context.Process(target=hold, args=(run.path, "11", taken))
    holder.start()
    assert taken.wait(60)
    with pytest.raises(TimeoutError), run.locked_job("11", 0.05):
        pass
    # Another job, and the GPUs, are nothing to it.
    with run.locked_job("12", 0.0), run.locked_gpus(0.0):
        pass
    # The kernel frees it with the process.
    holder.kill()
    holder.join()
    with run.locked_job("11", 10.0):
        pass


# -- who is dead ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "running", "claimed", "age_s", "words"),
    [
        ({"boot": "before"}, {"11"}, (), 1, "rebooted"),
        ({"phase": UNDOING}, {"11"}, (), 1, "did not come to its end"),
        ({}, {"11"}, (GPU,), UNSEEN_S + 1, ""),
        ({"seen": True}, {"11"}, (GPU,), UNSEEN_S + 1, ""),
        ({"seen": True}, (), (), 1, "no longer runs it"),
        ({}, (), (), 1, ""),
        ({}, (), (GPU,), 1, ""),
        ({}, (), (GPU,), STARTING_S + 1, "given its GPU to another"),
        ({}, (), ("GPU-other",), STARTING_S + 1, ""),
        ({}, (), (), UNSEEN_S + 1, "it was never seen"),
        ({"phase": PREPARING}, (), (), 1, ""),
    ],
)
def test_only_what_is_proven_dead_is_cleared_away(
    changes: dict[str, object],
    running: set[str],
    claimed: tuple[str, ...],
    age_s: float,
    words: str,
) -> None:
    checkpoint = make_checkpoint("11", **{"boot": "now", **changes})
    reason = find_death(
        checkpoint, boot="now", running=running, claimed=claimed, now=1000.0 + age_s
    )
    assert bool(reason) is bool(words)
    assert words in reason


@pytest.mark.parametrize(
    ("line", "job_ids"),
    [
        ("5:freezer:/slurm/uid_1000/job_4711/step_0", ("4711",)),
        ("5:freezer:/slurm_node1/uid_1000/job_4711", ("4711",)),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_0", ("4711",)),
        ("0::/system.slice/node1_slurmstepd.scope/job_4711", ("4711",)),
        (
            "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0",
            ("sEKNKTV3WPV500",),
        ),
        ("0::/user.slice/job_4711", ()),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_4711", ()),
        ("1:name=systemd:/user.slice/slurm/uid_1000/job_4711", ()),
        ("0::/system.slice/slurmstepd.scope/system/step_0", ()),
        ("0::/slurmstepd.scope.d/job_4711", ()),
        ("0::/system.slice/slurmd.service", ()),
        ("", ()),
    ],
)
def test_a_cgroup_tells_the_job(line: str, job_ids: tuple[str, ...]) -> None:
    assert find_jobs_of_cgroups(line) == job_ids


def test_hierarchies_are_those_with_a_limit_and_those_of_service_managers() -> None:
    mountinfo = """\
25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
31 25 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:28 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
34 31 0:29 / /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory
35 31 0:30 /docker/4711 /mnt rw - cgroup2 cgroup2 rw
nonsense
"""
    assert find_hierarchies(mountinfo) == (
        Hierarchy("/sys/fs/cgroup/unified", 2),
        Hierarchy("/sys/fs/cgroup/systemd", 1),
        Hierarchy("/sys/fs/cgroup/memory", 1, ("memory",)),
    )


@pytest.mark.parametrize("name", ["slurmd", "slurmstepd"])
def test_slurms_daemon_is_found_above_the_shell_of_a_hooks_script(name: str) -> None:
    look = (
        "import os; from slurm_colloc.host.system.control_groups import find_slurm_daemon as find; "
    )
    look += "print(find(os.getppid()))"
    daemon = (
        "import subprocess, sys; open('/proc/self/comm', 'w').write(sys.argv[1]); "
        """subprocess.run(["sh", "-c", '"$0" -c "$1"; true', sys.executable, sys.argv[2]])"""
    )
    ended = subprocess.run(
        [sys.executable, "-c", daemon, name, look], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"{name}\n"


def test_hooks_that_slurm_runs_inside_the_job_are_known_by_its_name() -> None:
    assert runs_inside_job("slurmstepd")
    assert not runs_inside_job("slurmd")
    assert not runs_inside_job("")


# -- the job --------------------------------------------------------------------------------------


def test_variables_of_slurmd_are_checked_one_by_one() -> None:
    job = read_hook_job(
        {
            "SLURM_JOB_ID": "11",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_GID": "100",
            "SLURM_JOB_GPUS": "2,0",
            "SLURM_JOB_RESTART_COUNT": "3",
        }
    )
    assert (job.uid, job.gid, job.gpus, job.restart) == (1000, 100, (2, 0), 3)
    for name, text in (
        ("SLURM_JOB_GPUS", "0,0"),
        ("SLURM_JOB_GPUS", "0;reboot"),
        ("SLURM_JOB_GPUS", "GPU-1"),
        ("SLURM_JOB_GPUS", "1 "),
    ):
        assert read_hook_job({"SLURM_JOB_ID": "1", name: text}).gpus is None
    # For the kernel it means "leave the user as it is", which is root.
    for text in ("4294967295", "9999999999", "-1", "", "x"):
        job = read_hook_job({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": text, "SLURM_JOB_GID": text})
        assert (job.uid, job.gid) == (None, None)
    assert read_hook_job({"SLURM_JOB_ID": "1"}).gpus == ()
    assert read_hook_job({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "-1"}).uid is None
    for text in ("", "../etc", "0", "1\n"):
        with pytest.raises(UsageProblem):
            read_hook_job({"SLURM_JOB_ID": text})


def test_a_checkpoint_knows_when_it_was_made() -> None:
    made = dataclasses.replace(make_checkpoint(), made_at=Checkpoint("1", 1, 1).made_at)
    assert abs(made.made_at - time.time()) < 60
