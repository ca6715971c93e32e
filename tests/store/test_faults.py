"""Signatures of jobs, and which of them have hit their neighbours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.store.profiles import (
    FaultRecord,
    compute_signature,
    find_culprit,
    forget_culprit,
    has_culprits,
    note_culprit,
)

from .record_strategies import JOBS

SCRIPT = b"#!/bin/sh\npython train.py\n"
JOB = Job(1, "train", "train.sh", ("--lr", "0.1"), "/home/ada")
TASK = ArrayTask(3, 0, 7, 8, 1)


def change(**changes: object) -> str:
    return compute_signature(SCRIPT, dataclasses.replace(JOB, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (change(), True),
        # Where and as what it was submitted does not change what it does.
        (change(number=7, name="other", directory="/tmp", cpus=8, script_name="b.sh"), True),
        (change(arguments=("--lr", "0.2")), False),
        (change(arguments=("--lr 0.1",)), False),
        (change(arguments=("--lr", "0.1", "")), False),
        (change(array_task=TASK), False),
        (compute_signature(SCRIPT + b"\n", JOB), False),
    ],
)
def test_a_signature_is_that_of_the_script_its_arguments_and_its_task(
    other: str, is_same: bool
) -> None:
    assert (compute_signature(SCRIPT, JOB) == other) is is_same


def test_an_argument_is_no_task_and_no_part_of_the_script() -> None:
    plain = dataclasses.replace(JOB, arguments=())
    signatures = {
        compute_signature(b"a", dataclasses.replace(plain, arguments=("b",))),
        compute_signature(b"ab", plain),
        compute_signature(b"a\0b", plain),
        compute_signature(b"a", dataclasses.replace(plain, arguments=("", "3"))),
        compute_signature(b"a", dataclasses.replace(plain, array_task=TASK)),
    }
    assert len(signatures) == 5


@given(job=JOBS)
def test_any_job_has_a_signature_that_can_be_a_file_name(job: Job) -> None:
    signature = compute_signature(SCRIPT, job)
    assert len(signature) == 32
    assert signature.isalnum()


def test_a_culprit_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    assert not has_culprits(tmp_path)
    assert find_culprit(tmp_path, "a" * 32) is None
    assert forget_culprit(tmp_path, "a" * 32) is False
    evidence = ("MPS server: ...", "its output: ...")
    note_culprit(tmp_path, "a" * 32, FaultRecord("4711/3", evidence))
    assert has_culprits(tmp_path)
    assert find_culprit(tmp_path, "a" * 32) == FaultRecord("4711/3", evidence)
    assert find_culprit(tmp_path, "b" * 32) is None
    [path] = (tmp_path / "faults").iterdir()
    assert json.loads(path.read_text())["evidence"] == ["MPS server: ...", "its output: ..."]
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    # It has done it again.
    note_culprit(tmp_path, "a" * 32, FaultRecord("4712/1"))
    assert find_culprit(tmp_path, "a" * 32) == FaultRecord("4712/1")
    assert forget_culprit(tmp_path, "a" * 32) is True
    assert not has_culprits(tmp_path)
    assert forget_culprit(tmp_path, "a" * 32) is False


def test_whose_script_ends_daemons_is_not_forgotten_when_it_succeeds_alone(tmp_path: Path) -> None:
    note_culprit(tmp_path, "a" * 32, FaultRecord("4711/3", ended_daemon=True))
    assert forget_culprit(tmp_path, "a" * 32) is False
    assert find_culprit(tmp_path, "a" * 32) == FaultRecord("4711/3", ended_daemon=True)


def test_a_damaged_note_bars_nobody_and_does_not_stop_a_submission(tmp_path: Path) -> None:
    note_culprit(tmp_path, "a" * 32, FaultRecord("4711/3"))
    [path] = (tmp_path / "faults").iterdir()
    path.write_text("{")
    assert find_culprit(tmp_path, "a" * 32) is None
    assert forget_culprit(tmp_path, "a" * 32) is True


def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("somebody's file")
    with pytest.raises(StateError, match="faults"):
        note_culprit(tmp_path, "a" * 32, FaultRecord("4711/3"))
    assert not has_culprits(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["faults"]
