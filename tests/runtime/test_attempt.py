"""One attempt of a pack: what is made of it before its members start, and after they have ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_colloc
from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.attempt import (
    close_pack,
    leave_out_absent,
    leave_output_to_members,
    run_attempt,
    run_pack,
)
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.runtime.stop_member import AttemptFence, Fenced
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.member_states import begin_attempt
from slurm_colloc.store.pack_directory import read_pack

from ..wait_until import wait_until
from .stepped_runner import SteppedRunner

ROOT = Path(slurm_colloc.__file__).parents[1]


def test_a_pack_that_is_not_on_this_node_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_attempt(str(tmp_path / "s.0"), "", None) == StateError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"csub: error: {tmp_path / 's.0'} is not on this node: ")
    assert said.count("\n") == 1


def test_what_nobody_expected_is_written_into_the_log(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A batch script has this variable from Slurm.
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(KeyError):
        run_pack(bed.pack, "", None)
    assert run_attempt(str(bed.pack), "", None) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"csub: the runner of {bed.pack} failed:\n")
    assert "KeyError" in said


def test_the_place_of_a_joiner_that_never_came_is_left_out(bed: SteppedRunner) -> None:
    planned = dataclasses.replace(bed.record, degree=5)
    changed = leave_out_absent(bed.pack, planned)
    assert changed.degree == 3
    assert read_pack(bed.pack) == changed
    fewer = dataclasses.replace(planned, degree=2)
    assert leave_out_absent(bed.pack, fewer) == fewer


def test_a_closed_pack_needs_nobody_s_look_and_keeps_no_environment(bed: SteppedRunner) -> None:
    unfinished = bed.pack / "members" / "0009"
    unfinished.mkdir()
    close_pack(bed.pack, bed.state, 1)
    assert not (bed.state.open / "s.0").exists()
    assert not unfinished.exists()
    assert not list(bed.pack.glob("members/*/env"))


def test_a_pack_whose_lock_somebody_has_is_left_to_the_next_call(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(0, 10_000, 100))
    with hold_lock(bed.pack / "lock", 1.0) as locked:
        assert locked
        # Nobody waits for real.
        monkeypatch.setattr("time.monotonic", lambda: float(next(moments)))
        close_pack(bed.pack, bed.state, 1)
        monkeypatch.undo()
    assert (bed.state.open / "s.0").exists()
    assert (bed.folder(1) / "env").exists()


def test_what_the_runner_says_stays_out_of_a_member_s_output(
    bed: SteppedRunner, tmp_path: Path
) -> None:
    output = tmp_path / "slurm-7.out"
    child = os.fork()
    if child == 0:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        before = leave_output_to_members(bed.pack)
        os.write(2, b"the runner\n")
        os.write(before, b"slurmstepd\n")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert output.read_text() == "slurmstepd\n"
    assert (bed.pack / "pack.log").read_text() == "the runner\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ExitCode(0, 9)", -signal.SIGKILL),
        ("ExitCode(0, 10)", -signal.SIGUSR1),
        ("ExitCode(3, 0)", 0),
        # It would stop and never end.
        (f"ExitCode(0, {int(signal.SIGSTOP)})", 0),
    ],
)
def test_a_batch_script_dies_of_what_its_only_member_has_died_of(code: str, status: int) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from slurm_colloc.model.member import ExitCode\n"
        "from slurm_colloc.runtime.attempt import end_like_the_member\n"
        f"end_like_the_member({code})\n"
    )
    ended = subprocess.run([sys.executable, "-IS", "-c", program], check=False, timeout=60)
    assert ended.returncode == status


def test_a_newer_attempt_ends_the_members_of_this_one(
    bed: SteppedRunner, process: StartedProcess
) -> None:
    member, _ = bed.run_member(1)
    member.process = process
    fence = AttemptFence(pack=bed.context)
    fence.check()
    assert process.poll() is None
    begin_attempt(bed.pack, 2)
    with pytest.raises(Fenced, match="attempt 2 of this pack has started; attempt 1 ends"):
        fence.check()
    wait_until(lambda: process.poll() is not None, "it was ended")
    assert process.poll() == -signal.SIGKILL
    # What becomes of the member is the newer attempt's to say.
    assert bed.read(1).state is MemberState.RUNNING
