"""Which GPU a pack without Slurm takes: each has one lock, however it is named."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from slurm_colloc.runtime import divide_gpus
from slurm_colloc.runtime.divide_gpus import choose_gpus, list_gpu_uuids, wait_for_gpu

A, B = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1e5b24c0-0000-4106-c12f-20bd9faed9f6"
MIG = "MIG-41b3359c-e721-56e5-8009-12e5797ed514"


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [A, B]),
        ("", []),
        ("0", [A]),
        ("1,0", [B, A]),
        (A, [A]),
        ("GPU-8932", [A]),
        (f"0,{A}", [A]),
        (f" {B} , 0", [B, A]),
        ("-1", []),
        ("0,-1,1", [A]),
        ("7", []),
        ("0,7,1", [A]),
        ("GPU-", []),
        ("NoDevFiles", []),
        (MIG, [MIG]),
        (",0", []),
    ],
)
def test_what_the_user_lets_it_use(visible: str | None, chosen: list[str]) -> None:
    assert choose_gpus(visible, [A, B]) == chosen


@pytest.mark.parametrize(
    ("visible", "chosen"), [(None, []), ("", []), ("0,1", ["0", "1"]), (A, [A]), ("-1", [])]
)
def test_where_no_uuid_can_be_read_words_stand_for_themselves(
    visible: str | None, chosen: list[str]
) -> None:
    assert choose_gpus(visible, []) == chosen


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs."""
    for address, uuid in (("0000:3b:00.0", A), ("0000:af:00.0", B)):
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\n")
    monkeypatch.setattr(divide_gpus, "_GPUS", tmp_path / "gpus")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path / "local"


def test_an_index_and_a_uuid_of_one_gpu_have_one_lock(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list_gpu_uuids() == [A, B]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert wait_for_gpu(machine) == A
    # CUDA is told what is locked.
    assert os.environ["CUDA_VISIBLE_DEVICES"] == A
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{A},1")
    assert wait_for_gpu(machine) == B
    assert sorted(path.name for path in machine.iterdir()) == [f"{B}.lock", f"{A}.lock"]


def test_no_visible_gpu_takes_none(machine: Path) -> None:
    assert wait_for_gpu(machine) == "machine"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    for uuid in (A, B):
        with (machine / f"{uuid}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
