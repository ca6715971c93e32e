"""A member's peak of gpu_memory: 0 only where it was read until the end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slurm_colloc.report.summary.pack_samples import StartSamples


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
