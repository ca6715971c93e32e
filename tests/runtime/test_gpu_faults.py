"""A GPU at which csub itself fails: said, and members run without MPS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime import discover_gpus
from slurm_colloc.runtime.discover_gpus import GpuFinding

from ..wait_until import wait_until
from .stepped_runner import SteppedRunner


def open_gpu(bed: SteppedRunner) -> None:
    """Prepare the GPU until it is known how it is shared."""
    gpu_mode = bed.parts.gpu_mode
    gpu_mode._settled.mode = None
    gpu_mode.pack = dataclasses.replace(
        bed.context,
        record=dataclasses.replace(bed.record, mode=SharingMode.MPS),
        allocation=dataclasses.replace(bed.allocation, gpus=("0",)),
    )
    gpu_mode.open()

    def settle() -> bool:
        gpu_mode.work()
        return gpu_mode.is_settled

    wait_until(settle, "it is known how the GPU is shared")


def test_a_thread_that_dies_of_what_no_one_foresaw_leaves_members_without_mps(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> GpuFinding:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr(discover_gpus, "find_gpus", fail)
    open_gpu(bed)
    assert bed.parts.gpu_mode.mode is SharingMode.TIMESLICE
    assert "ZeroDivisionError" in bed.events("sharing")[-1]["reason"]
    assert bed.parts.gpu_mode.setup.reason == bed.events("sharing")[-1]["reason"]


def test_a_finding_that_cannot_be_used_leaves_members_without_mps(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(*_: object) -> GpuFinding:
        return GpuFinding(("GPU-1",), None, "", "many", ())  # type: ignore[arg-type]

    monkeypatch.setattr(discover_gpus, "find_gpus", find)
    open_gpu(bed)
    assert bed.parts.gpu_mode.mode is SharingMode.TIMESLICE
    assert "TypeError" in bed.events("sharing")[-1]["reason"]


def test_what_cannot_be_prepared_for_minutes_is_done_without(
    build_bed: Callable[..., SteppedRunner],
) -> None:
    bed = build_bed()
    gpu_mode = bed.parts.gpu_mode
    gpu_mode._settled.mode = None
    assert gpu_mode.give_up(OSError(5, "Input/output error"))
    assert bed.events("sharing")[-1]["mode"] == SharingMode.TIMESLICE.value
    # What is settled is left as it is.
    gpu_mode._settled.mode = SharingMode.MPS
    assert gpu_mode.give_up(OSError(5, "Input/output error"))
    assert gpu_mode.mode is SharingMode.MPS
