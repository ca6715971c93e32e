"""What can be measured is chosen, and what cannot is refused in a sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_colloc.errors import CollocError, NodeError, UsageProblem
from slurm_colloc.host.nvml.nvml_query import Gpu, GpuProcess, NvmlAnswer
from slurm_colloc_lab.calibration.calibrated_gpu import CPU, choose_place
from slurm_colloc_lab.calibration.cells import MPS, TIMESLICE
from slurm_colloc_lab.calibration.measure_cells import check_table

from .tables import TABLES

ONE = "GPU-11111111-1111-1111-1111-111111111111"
OTHER = "GPU-22222222-2222-2222-2222-222222222222"
H200 = Gpu(
    0, ONE, "NVIDIA H200", 0, gpu_memory_total_mb=143771, compute_mode="DEFAULT", processes=()
)
SECOND = dataclasses.replace(H200, nvml_index=1, uuid=OTHER, minor_number=1)
CORES = range(16)


def answer(*gpus: Gpu) -> NvmlAnswer:
    return NvmlAnswer(driver_version="580.1", gpus=gpus)


def test_the_only_gpu_is_taken() -> None:
    place = choose_place(answer(H200), "", {}, CORES)
    assert place.gpu == H200
    assert (place.driver, place.modes, place.notes) == ("580.1", (MPS, TIMESLICE), ())
    assert place.room.gpu_memory_mb == 143771


@pytest.mark.parametrize("wanted", ["1", OTHER, OTHER[:12]])
def test_of_several_one_is_named(wanted: str) -> None:
    place = choose_place(answer(H200, SECOND), wanted, {}, CORES)
    assert place.gpu == SECOND


def test_the_allocation_says_which_gpus_there_are() -> None:
    both = answer(H200, SECOND)
    for environ in ({"CUDA_VISIBLE_DEVICES": OTHER}, {"CUDA_VISIBLE_DEVICES": "1"}):
        assert choose_place(both, "", environ, CORES).gpu == SECOND
        with pytest.raises(NodeError, match="--gpu=0 is not one of the job's"):
            choose_place(both, "0", environ, CORES)


@pytest.mark.parametrize(
    ("gpu", "kind", "words"),
    [
        ({"mig_enabled": True}, NodeError, "divided by MIG"),
        ({"compute_mode": "PROHIBITED"}, NodeError, "compute mode PROHIBITED"),
        ({"processes": (GpuProcess(7), GpuProcess(8))}, NodeError, r"pid 7, 8\).*--shared"),
    ],
)
def test_a_gpu_that_cannot_be_measured_is_refused(
    gpu: dict[str, object], kind: type[CollocError], words: str
) -> None:
    changed = dataclasses.replace(H200, **gpu)  # type: ignore[arg-type]
    with pytest.raises(kind, match=words):
        choose_place(answer(changed), "", {}, CORES)


def test_other_refusals_say_what_to_do() -> None:
    with pytest.raises(NodeError, match="no GPU to measure: no driver"):
        choose_place(NvmlAnswer(problem="no driver"), "", {}, CORES)
    with pytest.raises(NodeError, match="NVML shows none"):
        choose_place(answer(), "", {}, CORES)
    with pytest.raises(NodeError, match="--gpu=3 is not one of this machine's"):
        choose_place(answer(H200), "3", {}, CORES)
    with pytest.raises(UsageProblem, match=r"2 GPUs: 0 .*name one with --gpu"):
        choose_place(answer(H200, SECOND), "", {}, CORES)
    with pytest.raises(UsageProblem, match=r"3 cores are too few.*--cpus-per-task=16"):
        choose_place(answer(H200), "", {}, range(3))


def test_what_is_worth_knowing_is_noted() -> None:
    busy = dataclasses.replace(H200, processes=(GpuProcess(7),))
    assert "of both" in choose_place(answer(busy), "", {}, CORES, shared=True).notes[0]
    silent = dataclasses.replace(H200, processes=None)
    assert "does not tell" in choose_place(answer(silent), "", {}, CORES).notes[0]
    alone = dataclasses.replace(H200, compute_mode="EXCLUSIVE_PROCESS")
    place = choose_place(answer(alone), "", {}, CORES)
    assert place.modes == (MPS,)
    assert "time slicing is not measured" in place.notes[0]
    small = dataclasses.replace(H200, gpu_memory_total_mb=50_000)
    notes = choose_place(answer(small), "", {}, CORES).notes
    assert notes == ("left out, the GPU or the host has too little room: hog",)


def test_the_cpu_stands_in_for_a_try() -> None:
    place = choose_place(NvmlAnswer(problem="no driver"), CPU, {}, range(1))
    assert (place.gpu, place.modes) == (None, (TIMESLICE,))


def test_rows_are_only_appended_to_a_table_of_the_same_gpu(tmp_path: Path) -> None:
    check_table(tmp_path / "new.csv", "NVIDIA H200")
    check_table(TABLES[0], "NVIDIA H200")
    with pytest.raises(UsageProblem, match="holds rows of 'NVIDIA H200', this is NVIDIA A30"):
        check_table(TABLES[0], "NVIDIA A30")
    with pytest.raises(UsageProblem, match="cannot write"):
        check_table(tmp_path / "no" / "folder.csv", "NVIDIA H200")
    other = tmp_path / "other.csv"
    other.write_text("".join(f"{line},more\n" for line in TABLES[0].read_text().splitlines()))
    with pytest.raises(UsageProblem, match="its columns are not those"):
        check_table(other, "NVIDIA H200")
