"""Jobs that Slurm could not start: they have failed, and csub says why."""

from __future__ import annotations

import pytest

from ..bed import CsubUser

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--output=nodir/x.out", "the directory nodir of --output=nodir/x.out does not exist"),
        ("--chdir=/nonexistent", "its working directory /nonexistent does not exist"),
    ],
)
def test_a_job_that_could_not_begin_has_failed_and_says_why(
    user: CsubUser, option: str, told: str
) -> None:
    user.script("ok.sh", "exit 0")
    job_id = user.submit("--gres=gpu:1", "--time=5", option, "ok.sh")
    user.run(["csub", "wait", job_id], check=False)
    (row,) = user.members(job_id).values()
    assert (row["state"], row["exit_code"]) == ("FAILED", None)
    assert user.csub("why", job_id).stdout == (
        f"{job_id}/1 FAILED: Slurm could not start its batch script: {told}; it never started\n"
    )
    ended = user.run(["csub", "logs", job_id], check=False)
    assert (ended.returncode, ended.stdout) == (7, "")
    assert told in ended.stderr
    assert " yet" not in ended.stderr
