"""Waiting for the job where Slurm does not behave; its commands are stand-ins here."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.diagnosis.doctor_job import DoctorJobWait, run_job
from slurm_colloc.diagnosis.login_findings import DoctorQuestion, JobOutcome
from slurm_colloc.model.examination import Examination
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts

DEAD = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2"
SHOWN = "echo 'JobId=4711 JobState={} Reason=None ExitCode={} BatchHost=n1'"
SEEN = Examination("n1", "0.1.0", "3.11.2")

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make programs that come first in PATH; what they are called with stands in `called`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(**programs: str) -> None:
        for name, text in programs.items():
            log = f"echo {name} \"$@\" >>'{tmp_path}/called'"
            (folder / name).write_text(f"#!/bin/sh\n{log}\n{text}\n")
            (folder / name).chmod(0o755)

    return make


def wait(place: Path, *, timeout_s: float = 20.0) -> JobOutcome:
    told: list[str] = []
    return DoctorJobWait("4711", place, timeout_s, told.append, HeldInterrupts()).run()


def test_a_controller_that_dies_meanwhile_is_told_with_the_job_that_may_be_left(
    tmp_path: Path, install: Install
) -> None:
    install(scontrol=f"{DEAD}; exit 1", scancel=f"{DEAD}; exit 1")
    outcome = wait(tmp_path)
    assert outcome.gave_up
    assert outcome.trouble is not None
    assert outcome.trouble.message.startswith("job 4711 could not be cancelled (")
    assert "scancel 4711" in outcome.trouble.hint


def test_an_answer_counts_even_where_slurm_has_forgotten_the_job(
    tmp_path: Path, install: Install
) -> None:
    install(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    (tmp_path / "node").write_text("n1\n")
    (tmp_path / "node.json").write_text(json.dumps({"schema": 1, **dataclasses.asdict(SEEN)}))
    outcome = wait(tmp_path)
    assert (outcome.seen, outcome.state, outcome.exit_code) == (SEEN, "", None)
    assert (outcome.wrote, outcome.gave_up) == (True, False)


@pytest.mark.parametrize(
    "text", ["{", '{"schema": 99}', '{"schema": 1}', '{"schema": 1, "node": 3, "nvml": {}}']
)
def test_an_answer_that_is_damaged_is_no_answer(
    tmp_path: Path, install: Install, text: str
) -> None:
    install(scontrol=SHOWN.format("COMPLETED", "0:0"))
    (tmp_path / "node").write_text("n1\n")
    (tmp_path / "node.json").write_text(text)
    outcome = wait(tmp_path)
    assert outcome.seen is None
    assert outcome.errors.startswith("its answer is damaged (")


@pytest.mark.parametrize(
    ("shown", "code"), [("6:0", 6), ("0:9", None), ("0:0", 0)], ids=["status", "signal", "good"]
)
def test_the_exit_status_of_the_script_is_read(
    tmp_path: Path, install: Install, shown: str, code: int | None
) -> None:
    install(scontrol=SHOWN.format("FAILED", shown))
    (tmp_path / "node.json").write_text(json.dumps({"schema": 1, **dataclasses.asdict(SEEN)}))
    assert wait(tmp_path).exit_code == code


def test_a_job_that_will_never_start_is_not_waited_for_until_the_end(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_colloc.diagnosis.doctor_job._HOPELESS_S", 0.0)
    held = "echo 'JobId=4711 JobState=PENDING Reason=JobHeldAdmin ExitCode=0:0'"
    gone = "echo 'JobId=4711 JobState=CANCELLED Reason=None ExitCode=0:0'"
    install(scontrol=f"if [ -e {tmp_path}/over ]; then {gone}; else {held}; fi",
            scancel=f"touch {tmp_path}/over")  # fmt: skip
    outcome = wait(tmp_path, timeout_s=3600.0)
    assert (outcome.gave_up, outcome.state, outcome.reason) == (True, "PENDING", "JobHeldAdmin")
    assert "scancel 4711" in (tmp_path / "called").read_text()


def test_a_submission_without_an_answer_is_looked_for_and_taken_back(
    tmp_path: Path, install: Install
) -> None:
    install(
        sbatch=f"printf '%s\\n' \"$@\" >{tmp_path}/asked\n"
        "echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1",
        squeue="sed -n 's/^--comment=/4711|4711|PENDING|0:00|2:00|N\\/A||None|/p' "
        f"{tmp_path}/asked",
        scancel="true",
    )
    settings = Settings(state_dir=str(tmp_path / "state"))
    asked = DoctorQuestion("0.1.0", settings.python, "")
    outcome, _ = run_job({}, "gpu:1", asked, settings, print)
    assert outcome.trouble is not None
    assert "timed out" in outcome.trouble.message
    assert "scancel 4711" in (tmp_path / "called").read_text()
    assert [path.name for path in (tmp_path / "state").iterdir()] == []
