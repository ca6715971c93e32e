"""What csub says while one waits, and where a command is called as elsewhere, on a fake Slurm."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import check_refused

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")


def watch(user: CsubUser, *words: str, until: str = "", go: Path | None = None) -> tuple[int, str]:
    """Run csub with standard error on a terminal; its exit status and what is seen there.

    Once `until` is seen, the file `go` is made.
    """
    ours, theirs = pty.openpty()
    try:
        started = subprocess.Popen(
            ["csub", *words], env={**user.environment, "COLUMNS": "120"}, cwd=user.home,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        )  # fmt: skip
    finally:
        os.close(theirs)
    seen = b""
    with open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123
        try:
            while chunk := terminal.read(4096):
                seen += chunk
                if go is not None and until.encode() in seen:
                    go.touch()
        except OSError:
            # The other end is closed.
            pass
    return started.wait(60), seen.decode()


def sweep(user: CsubUser, *words: str) -> str:
    return user.csub("sweep", "--parsable", *SHARE, *words).stdout.strip()


def test_waiting_shows_how_far_it_is_and_how_it_ended(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "until [ -e go ]; do sleep 0.1; done; exit $1")
    slurm.pause()
    job_id = sweep(user, "train.sh", "{code}", "code=0,0,3")
    slurm.go_on()
    status, seen = watch(user, "wait", job_id, until="of 3 done", go=user.home / "go")
    assert status == 3
    assert "0 of 3 done" in seen
    end = f"csub: 3 members: 2 COMPLETED, 1 FAILED ({job_id}/3); csub retry {job_id} tries again"
    assert end in seen
    # Where no one watches, a program reads what it always read.
    silent = user.csub("wait", job_id, check=False).stderr
    assert silent == f"csub: exit status 3 is that of {job_id}/3, FAILED\n"


def test_changes_are_told_on_a_terminal(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "sleep 60")
    slurm.pause()
    job_id = sweep(user, "train.sh", "--n", "1,2,3")
    assert f"csub: held: {job_id}/1-2" in watch(user, "hold", f"{job_id}/1-2")[1]
    assert f"csub: released: {job_id}/1" in watch(user, "release", f"{job_id}/1")[1]
    assert f"csub: cancelled: {job_id}/1-3" in watch(user, "cancel", job_id)[1]
    assert user.csub("cancel", job_id).stderr.endswith("already ended\n")
    slurm.go_on()


def test_the_end_of_outputs_and_whose_line_it_is(user: CsubUser) -> None:
    user.script("train.sh", "for i in 1 2 3; do echo $1 $i; done; printf $1-end")
    job_id = sweep(user, "train.sh", "{n}", "n=7,8")
    user.finish(job_id)
    assert user.csub("logs", "--tail", "2", f"{job_id}/1").stdout == "7 3\n7-end"
    prefixed = user.csub("logs", "--prefix", "--tail=1", job_id).stdout
    assert prefixed == f"{job_id}/1 | 7-end\n{job_id}/2 | 8-end\n"
    assert user.csub("logs", "--tail", "0", f"{job_id}/1").stdout == ""
    assert user.csub("logs", "--tail", "99", f"{job_id}/1").stdout == "7 1\n7 2\n7 3\n7-end"
    headed = user.csub("logs", "--tail=1", job_id).stdout
    assert f"==> {job_id}/1 n=7 " in headed


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("status", "csub queue"), ("ls", "csub queue"), ("squeue", "csub queue"),
        ("jobs", "csub queue"), ("kill", "csub cancel"), ("seff", "csub report"),
    ],
)  # fmt: skip
def test_names_of_others_lead_to_csubs_own(user: CsubUser, name: str, meant: str) -> None:
    check_refused(
        user, (name, "4711"), 2,
        f"csub has no command {name}: {meant} does that; ./{name} submits a file",
    )  # fmt: skip
    Path(user.home / name).write_text("#!/bin/sh\nexit 0\n")
    assert user.csub("--time=5", name).returncode == 0


def test_the_help_is_grouped_and_leaves_no_command_out(user: CsubUser) -> None:
    told = user.csub("--help").stdout
    for title in ("Submit:", "Look:", "Afterwards:", "Change:", "Set up:"):
        assert title in told
    assert "More:" not in told
    for command in ("sweep", "batch", "retry", "pack", "probe"):
        assert user.csub(command, "--help").stdout.startswith(f"Usage: csub {command} ")


def test_a_status_of_a_script_that_csub_has_too_is_said_to_be_the_scripts(user: CsubUser) -> None:
    user.script("seven.sh", "exit 7")
    job_id = user.submit("--gres=gpu:1", "seven.sh")
    waited = user.csub("wait", job_id, check=False)
    assert (waited.returncode, waited.stderr) == (
        7, f"csub: exit status 7 is that of {job_id}/1, FAILED\n"
    )  # fmt: skip
    # csub's own says what is wrong.
    unknown = user.csub("wait", "4711", check=False)
    assert unknown.returncode == 7
    assert "exit status" not in unknown.stderr
    assert "csub: error: " in unknown.stderr
