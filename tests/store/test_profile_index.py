"""Which usage profiles there are: the folder says so, whoever put them there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slurm_colloc.model.profile import RUN_MOST_S, Observation, ProfileRecord, RunningStatistics
from slurm_colloc.store.profile_index import ProfileNames
from slurm_colloc.store.profiles import (
    add_observations,
    list_profiles,
    profile_path,
    read_family,
    read_named,
    read_profile,
)

ONE, OTHER, FAMILY = "a" * 32, "b" * 32, "f" * 32


def observe(root: Path, signature: str, gpu_model: str) -> Path:
    """Leave a usage profile; its file."""
    seen = Observation(
        signature, FAMILY, "train", gpu_model, "GPU-1", "4711/1", 1.0, 30.0, steps_per_s=10.0
    )
    assert add_observations(root, [seen]) == []
    return profile_path(root, signature, gpu_model)


def test_a_profile_that_was_copied_in_is_found(tmp_path: Path) -> None:
    here = observe(tmp_path / "here", ONE, "NVIDIA A100")
    there = observe(tmp_path / "there", ONE, "NVIDIA H200")
    shutil.copy(there, here.parent)
    assert ProfileNames(tmp_path / "here").find_signature(ONE) == [here.name, there.name]
    here.unlink()
    names = ProfileNames(tmp_path / "here").find_signature(ONE)
    assert names == [there.name]
    assert [record.gpu_model for record in read_named(tmp_path / "here", names)[0]] == [
        "NVIDIA H200"
    ]


@pytest.mark.parametrize(
    "name", [b"\xff" * 32 + b".x.json", b"a" * 32 + b".x\ny.json", b"A" * 32 + b".x.json"]
)
def test_a_file_of_another_name_is_none(tmp_path: Path, name: bytes) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    shutil.copy(path, path.parent / os.fsdecode(name))
    # The index lacks it, and what it lacks is written into it.
    assert [record.signature for record in read_family(tmp_path, FAMILY)[0]] == [ONE]
    assert ProfileNames(tmp_path).find_signature(ONE) == [path.name]
    assert len(list_profiles(tmp_path)[0]) == 1


def test_a_pipe_in_the_place_of_a_profile_is_not_waited_for(tmp_path: Path) -> None:
    observe(tmp_path, ONE, "NVIDIA H200")
    os.mkfifo(profile_path(tmp_path, OTHER, "NVIDIA H200"))
    assert read_profile(tmp_path, OTHER, "NVIDIA H200") is None
    records, problems = list_profiles(tmp_path)
    assert [record.signature for record in records] == [ONE]
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("steps", "rate", "run_s"),
    [
        (1e5, 10.0, 1e4),
        (RUN_MOST_S, 1.0, RUN_MOST_S),
        (RUN_MOST_S * 1.1, 1.0, None),
        (1e15, 1e-30, None),
        (1e15, 5e-324, None),
    ],
)
def test_no_run_takes_longer_than_a_year(steps: float, rate: float, run_s: float | None) -> None:
    record = ProfileRecord(
        ONE, FAMILY, "train", "NVIDIA H200", (), 1, 1.0,
        steps_per_s=RunningStatistics.start(rate), steps_total=RunningStatistics.start(steps),
    )  # fmt: skip
    assert record.run_s == run_s
    assert record.for_planning().run_s == run_s
