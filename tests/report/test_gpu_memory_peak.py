"""A member's peak of gpu_memory: who says it, and 0 only where it was read until the end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slurm_colloc.model.plan import PeakSource
from slurm_colloc.report.member_figures import (
    CONTEXT_ASSUMED_MB,
    GpuMemoryPeak,
    choose_highest,
    find_gpu_memory_peak,
)
from slurm_colloc.report.pack_samples import StartSamples


def read_peak(values: list[float | None], row_s: float = 1.0) -> float | None:
    at = [1000.0 + row_s * number for number in range(len(values))]
    table = pa.table({"at": at, "gpu_memory_mb": pa.array(values, pa.float64())})
    return StartSamples(1, 1, table).gpu_memory_peak_mb


@pytest.mark.parametrize(
    ("values", "peak"),
    [
        ([0.0, None, None, None, None] * 8, 0.0),
        ([512.0, None, None, None, None, *[None] * 60], 512.0),
        # It was read no longer: it has moved into a pid namespace of its own.
        ([0.0, None, None, None, None, *[None] * 60], None),
        ([0.0], 0.0),
        ([None] * 40, None),
    ],
)
def test_none_at_the_beginning_says_nothing_of_the_rest(
    values: list[float | None], peak: float | None
) -> None:
    assert read_peak(values) == peak


def test_rows_that_stand_for_many_seconds_each_are_no_gap() -> None:
    assert read_peak([0.0, 0.0, None], row_s=30.0) == 0.0


def build_start(
    seen: list[float | None],
    reserved: list[float | None],
    peaks: list[float | None],
    first_step_at: float | None = None,
) -> StartSamples:
    columns = {
        "first_step_at": [first_step_at] * len(seen),
        "gpu_memory_mb": seen,
        "gpu_memory_reserved_mb": reserved,
        "gpu_memory_reserved_peak_mb": peaks,
    }
    table = {name: pa.array(values, pa.float64()) for name, values in columns.items()}
    at = [1000.0 + number for number in range(len(seen))]
    return StartSamples(1, 1, pa.table({"at": at, **table}))


def test_the_allocator_s_peak_counts_with_what_lies_outside_of_it() -> None:
    # Measured on an H100: workspaces of the first step are back before NVML's first look, and the
    # first look is between two of the allocator's.
    start = build_start(
        [None, 916.0, 1388.0, 1388.0, None],
        [154.0, 154.0, 626.0, 626.0, 626.0],
        [1370.0] * 5,
    )
    found = find_gpu_memory_peak(start)
    assert found == GpuMemoryPeak(1370 + 762, PeakSource.ALLOCATOR, 1370, 762)
    assert not found.is_assumed


def test_what_was_outside_before_the_first_step_is_not_all_that_is_needed() -> None:
    # Measured on an H100: 327 MB by NVML while the context was made, 1,006 in the end.
    seen: list[float | None] = [327.0, 327.0, 327.0, 1006.0, 1006.0]
    found = find_gpu_memory_peak(build_start(seen, [88.0] * 5, [88.0] * 5, 1003.0))
    assert found == GpuMemoryPeak(1006, PeakSource.ALLOCATOR, 88, 918)
    # Where no look came later, what is outside is assumed.
    early = find_gpu_memory_peak(build_start(seen[:3], [88.0] * 3, [88.0] * 3, 1003.0))
    assert early == GpuMemoryPeak(88 + CONTEXT_ASSUMED_MB, PeakSource.ALLOCATOR, 88, None)


def test_what_another_program_of_the_member_took_counts_too() -> None:
    start = build_start([900.0, 9000.0], [400.0, None], [500.0, 500.0])
    found = find_gpu_memory_peak(start)
    assert found is not None
    assert (found.peak_mb, found.by) == (9000, PeakSource.ALLOCATOR)


@pytest.mark.parametrize("seen", [[None, None], [100.0, 0.0]])
def test_where_nvml_does_not_tell_it_the_rest_is_assumed(seen: list[float | None]) -> None:
    found = find_gpu_memory_peak(build_start(seen, [400.0, 400.0], [500.0, 600.0]))
    assert found is not None
    assert (found.peak_mb, found.outside_mb) == (600 + CONTEXT_ASSUMED_MB, None)
    assert found.is_assumed


def test_without_the_allocator_it_is_nvml_s_at_its_looks() -> None:
    start = build_start([None, 700.0, 650.0], [None] * 3, [None] * 3)
    assert find_gpu_memory_peak(start) == GpuMemoryPeak(700, PeakSource.NVML)
    assert find_gpu_memory_peak(build_start([None], [None], [None])) is None


def test_the_highest_of_several_starts() -> None:
    low = build_start([700.0], [None], [None])
    high = build_start([900.0], [500.0], [600.0])
    assert choose_highest([low, high]) == GpuMemoryPeak(1000, PeakSource.ALLOCATOR, 600, 400)
    assert choose_highest([]) is None
