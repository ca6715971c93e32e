"""What only the fake does: it refuses what it does not have, and holds jobs back for a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .cluster import FakeSlurm
from .program import UNKNOWN


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    for name, value in fake.env(os.environ).items():
        monkeypatch.setenv(name, value)
    return fake


def call(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "argv",
    [
        ("sbatch", "--tmp=3", "--wrap=true"),
        ("sbatch", "--nodes=2", "--wrap=true"),
        ("squeue", "--federation"),
        ("squeue", "-h", "-o", "%Q"),
        ("scontrol", "show", "licenses"),
        ("scontrol", "update", "JobId=1", "Nice=3"),
        ("scancel", "--state=PENDING"),
        ("srun", "--overlap", "true"),
        ("srun", "--jobid=1", "--pty", "true"),
        ("sinfo", "-h"),
        ("sprio",),
        ("sstat", "-j", "1"),
    ],
    ids=" ".join,
)
def test_what_the_fake_does_not_have_fails_the_call_and_the_test(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert call("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").stdout
    ended = call(*argv)
    assert ended.returncode == UNKNOWN
    assert ended.stderr.startswith(f"the fake {argv[0]} does not know ")
    with pytest.raises(AssertionError, match=f"the fake {argv[0]} does not know "):
        fake.close()


def test_no_job_starts_while_a_test_holds_them_back(fake: FakeSlurm) -> None:
    fake.pause()
    call("sbatch", "--output=/dev/null", "--wrap=sleep 300")
    assert [(job["state"], job["reason"]) for job in fake.look().values()] == [
        ("PENDING", "Priority")
    ]
    fake.go_on()
    assert [job["state"] for job in fake.look().values()] == ["RUNNING"]
    fake.close()
    assert [job["state"] for job in fake.look().values()] == ["CANCELLED"]


def test_every_call_is_written_down(fake: FakeSlurm) -> None:
    call("squeue", "-h")
    call("scontrol", "show", "config")
    assert fake.list_all_calls() == [["squeue", "-h"], ["scontrol", "show", "config"]]
    fake.close()
