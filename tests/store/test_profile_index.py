"""Which usage profiles there are: the folder says so, however they came there."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.usage_profile import (
    RUN_MOST_S,
    Observation,
    ProfileRecord,
    RunningStatistics,
)
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.profile_updates import add_observations, forget_profiles
from slurm_colloc.store.profiles import (
    ProfileNames,
    list_profiles,
    profile_path,
    read_family,
    read_named,
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


def test_what_stands_in_the_place_of_a_profile_is_not_waited_for_and_said(tmp_path: Path) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    pipe, folder, link = (profile_path(tmp_path, letter * 32, "NVIDIA H200") for letter in "bcd")
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("/dev/zero")
    records, problems = list_profiles(tmp_path)
    assert [record.signature for record in records] == [ONE]
    assert problems == [
        f"cannot read {pipe}: it is a named pipe, no file",
        f"cannot read {folder}: it is a directory, no file",
        f"cannot read {link}: it is a device, no file",
    ]
    # What the others have seen is not lost with it.
    seen = [
        Observation(letter * 32, FAMILY, "train", "NVIDIA H200", "GPU-1", "4712/1", 2.0, 30.0)
        for letter in "abe"
    ]
    (problem,) = add_observations(tmp_path, seen)
    assert problem == f"cannot read {pipe}: it is a named pipe, no file; it was left as it is"
    assert [record.samples for record in list_profiles(tmp_path)[0]] == [2, 1]
    assert path.exists()


def test_a_profile_under_the_name_of_another_job_or_gpu_tells_nothing(tmp_path: Path) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    for signature, model in ((OTHER, "NVIDIA H200"), (ONE, "NVIDIA A100")):
        wrong = profile_path(tmp_path, signature, model)
        shutil.copy(path, wrong)
        told = f"{wrong}: its contents are of another job or GPU, that of {path.name}"
        assert read_named(tmp_path, [wrong.name]) == ([], [told])
        records, problems = read_family(tmp_path, FAMILY)
        assert ([record.signature for record in records], problems) == ([ONE], [told])
        seen = Observation(signature, FAMILY, "train", model, "GPU-1", "4712/1", 2.0, 30.0)
        before = wrong.read_bytes()
        assert add_observations(tmp_path, [seen]) == [f"{told}; it was left as it is"]
        assert wrong.read_bytes() == before
        wrong.unlink()


def test_a_folder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(tmp_path, ONE, "NVIDIA H200")
    folder = tmp_path / "profiles"

    def refuse(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("slurm_colloc.store.profiles.os.listdir", refuse)
    told = f"cannot read {folder}: Permission denied"
    names = ProfileNames(tmp_path)
    assert list_profiles(tmp_path, names) == ([], [told])
    assert names.problem is not None
    assert read_family(tmp_path, FAMILY) == ([], [told])
    monkeypatch.undo()
    assert list_profiles(tmp_path / "nobody") == ([], []), "there is none yet"
    shutil.rmtree(folder)
    folder.touch()
    assert list_profiles(tmp_path) == ([], [f"cannot read {folder}: Not a directory"])


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_an_index_that_is_no_file_is_done_without(tmp_path: Path, kind: str) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    index, other = path.parent / "families", tmp_path / "other"
    index.unlink()
    other.write_text("mine\n")
    if kind == "link":
        index.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(index)
    else:
        index.mkdir()
    observe(tmp_path, OTHER, "NVIDIA H200")
    records, problems = read_family(tmp_path, FAMILY)
    assert ([record.signature for record in records], problems) == ([ONE, OTHER], [])
    assert forget_profiles(tmp_path, records) == 2
    assert other.read_text() == "mine\n"


def test_profiles_that_are_links_are_replaced_and_removed_not_followed(tmp_path: Path) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    outside = path.rename(tmp_path / "outside.json")
    before = outside.read_bytes()
    path.symlink_to(outside)
    seen = Observation(ONE, FAMILY, "train", "NVIDIA H200", "GPU-1", "4712/1", 2.0, 30.0)
    assert add_observations(tmp_path, [seen]) == []
    assert outside.read_bytes() == before
    assert [record.samples for record in list_profiles(tmp_path)[0]] == [2]
    path.unlink()
    path.symlink_to(outside)
    assert forget_profiles(tmp_path, list_profiles(tmp_path)[0]) == 1
    assert outside.read_bytes() == before
    assert list_profiles(tmp_path) == ([], [])


def test_a_lock_that_cannot_be_had_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    records = list_profiles(tmp_path)[0]
    lock = path.parent / "lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StateError) as told:
        forget_profiles(tmp_path, records)
    assert told.value.message == f"cannot lock {lock}: Is a directory"
    lock.rmdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("slurm_colloc.store.atomic_files.fcntl.flock", refuse)
    with pytest.raises(StateError) as told:
        forget_profiles(tmp_path, records)
    assert told.value.message == f"cannot lock {lock}: No locks available"
    monkeypatch.undo()
    with hold_lock(lock, 0) as held:
        assert held
        monkeypatch.setattr("slurm_colloc.store.atomic_files._FOLDER_WAIT_S", 0.0)
        with pytest.raises(StateError) as told:
            forget_profiles(tmp_path, records)
    assert str(told.value) == f"{lock} is being written by another csub: try again"
    assert path.exists()


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = observe(tmp_path, ONE, "NVIDIA H200")
    records = list_profiles(tmp_path)[0]

    def refuse(self: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StateError) as told:
        forget_profiles(tmp_path, records)
    assert told.value.message == f"cannot remove {path}: Read-only file system"


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
