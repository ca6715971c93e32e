"""Ending a member's processes, and reading what its wrapper and its srun have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.programs import enter
from slurm_colloc.runtime.programs.wrapper import write_record
from slurm_colloc.runtime.stop_member import (
    LOG_LIMIT,
    clean,
    ends_before_its_srun,
    kill,
    outlives_its_srun,
    read_exit,
    read_log,
    read_started,
    terminate,
)
from slurm_colloc.store.member_states import StateRecord

from ..wait_until import wait_until
from .stepped_runner import PlainProcess
from .test_members import SPEC


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """A member that was started as a step."""
    started = Member(1, SPEC, StateRecord(MemberState.RUNNING, 1))
    started.prefix = str(tmp_path / "run.1.1")
    started.launcher = "srun"
    return started


@pytest.fixture
def wrapper(member: Member) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a wrapper's command line."""
    argv = [sys.executable, "-ISc", "import time; time.sleep(300)", f"{member.prefix}.launch"]
    process = subprocess.Popen(argv)
    member.wrapper_pid = process.pid
    # For a moment a new process shows no command line.
    wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "it is up")
    yield process
    process.kill()
    process.wait()


def test_the_wrapper_is_asked_to_end_its_member(
    member: Member, wrapper: subprocess.Popen[bytes]
) -> None:
    srun = PlainProcess()
    member.process = srun
    terminate(member)
    assert wrapper.wait() == -signal.SIGTERM
    assert srun.kills == 0
    # It has gone in the meantime.
    terminate(member)


def test_a_member_that_is_not_up_yet_is_ended_with_its_srun(member: Member) -> None:
    srun = PlainProcess()
    member.process = srun
    terminate(member)
    assert srun.kills == 1


def test_killing_ends_the_script_the_wrapper_and_the_srun(
    member: Member, wrapper: subprocess.Popen[bytes]
) -> None:
    srun = PlainProcess()
    member.process = srun
    script = subprocess.Popen(["sleep", "300"])
    member.pid = script.pid
    kill(member)
    assert (script.wait(), wrapper.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert srun.kills == 1


def test_a_member_outlives_its_srun_while_its_wrapper_runs(
    member: Member, wrapper: subprocess.Popen[bytes]
) -> None:
    assert outlives_its_srun(member)
    member.launcher = "process"
    assert not outlives_its_srun(member)
    member.launcher = "srun"
    Path(f"{member.prefix}.exit").write_text("{}")
    assert not outlives_its_srun(member)
    assert ends_before_its_srun(member)
    Path(f"{member.prefix}.exit").unlink()
    wrapper.kill()
    wrapper.wait()
    assert not outlives_its_srun(member)


def test_another_process_of_the_same_id_is_not_taken_for_the_wrapper(member: Member) -> None:
    member.wrapper_pid = os.getpid()
    assert not outlives_its_srun(member)
    member.wrapper_pid = None
    assert not outlives_its_srun(member)


def test_what_is_not_written_yet_is_not_there(member: Member) -> None:
    assert read_started(member) is None
    assert read_exit(member) is None
    assert read_log(member) == ""
    write_record(f"{member.prefix}.started", {"pid": 7})
    write_record(f"{member.prefix}.exit", {"wait_status": 0})
    assert read_started(member) == {"schema": 1, "pid": 7}
    assert read_exit(member) == {"schema": 1, "wait_status": 0}


def test_of_a_long_log_the_end_is_read(member: Member) -> None:
    Path(f"{member.prefix}.log").write_bytes(b"begin" + b"x" * LOG_LIMIT + b"\xffend")
    text = read_log(member)
    assert "begin" not in text
    assert text.endswith("\ufffdend")


def test_what_the_wrapper_could_not_remove_is_removed(member: Member, tmp_path: Path) -> None:
    own = tmp_path / "tmpdir"
    own.mkdir()
    (own / "file").touch()
    launch = Path(f"{member.prefix}.launch")
    launch.touch()
    member.tmpdir = str(own)
    clean(member)
    assert not own.exists()
    assert not launch.exists()
    clean(member)


def test_csub_shell_says_that_another_version_has_started_a_member(
    member: Member, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(f"{member.prefix}.started", {"schema": 2})
    assert enter.main(["4711/1", member.prefix]) == 1
    said = "csub: error: another version of csub has started 4711/1: use that one\n"
    assert capsys.readouterr() == ("", said)
