"""What one GPU set has seen of its members' GPU memory counts in the others of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.runtime.launch.step_command import StartedProcess
from slurm_colloc.runtime.watch.peaks_of_job import (
    NAME,
    FamilyPeaks,
    JobPeaks,
    read_peaks,
    write_peaks,
)

from .degree_stage import Stage

GPU_MB = 80_000


class Pair:
    """Two GPU sets of one job with members of one kind, of which nothing is known."""

    def __init__(self, folder: Path, process: StartedProcess, usable_mb: int = 40_000) -> None:
        packs = [folder / name / "state" / "packs" / "s.0" for name in "ab"]
        self.now = 0.0
        self.stages = [
            Stage(
                folder / name,
                process,
                known_mb=None,
                usable_mb=usable_mb,
                others=JobPeaks(own, [other], 0, lambda: GPU_MB, clock=lambda: self.now),
            )
            for name, own, other in zip("ab", packs, packs[::-1], strict=True)
        ]
        assert [stage.pack for stage in self.stages] == packs


def test_the_first_of_a_kind_is_waited_for_in_one_set_alone(
    tmp_path: Path, process: StartedProcess
) -> None:
    first, second = Pair(tmp_path, process).stages
    first.memory_mb = dict.fromkeys(range(1, 5), 3000.0)
    assert first.start_all() == [1]
    first.pass_time(6)
    assert first.start_all() == [2, 3, 4]
    # It has not even been seen on its GPU yet.
    assert second.start_all() == [1, 2, 3, 4]


def test_no_more_start_than_fit_by_what_the_other_set_has_seen(
    tmp_path: Path, process: StartedProcess
) -> None:
    first, second = Pair(tmp_path, process, usable_mb=10_000).stages
    first.memory_mb = {1: 3000.0}
    first.start()
    first.pass_time(6)
    # With its margin each may take 4,624 MB.
    assert second.start_all() == [1, 2]


@pytest.mark.parametrize(
    "told",
    [FamilyPeaks(1, GPU_MB, (("f", 5000),)), FamilyPeaks(0, 40_000, (("f", 5000),)), None,
     FamilyPeaks(0, GPU_MB, (("f", -1),))],
)  # fmt: skip
def test_what_is_of_another_start_or_another_gpu_or_damaged_tells_nothing(
    tmp_path: Path, told: FamilyPeaks | None
) -> None:
    if told is None:
        (tmp_path / NAME).write_text('{"schema": 1, "peaks_mb": 7')
    else:
        write_peaks(tmp_path, told)
    assert JobPeaks(tmp_path, [tmp_path], 0, lambda: GPU_MB).find_mb("f") is None


def test_it_is_written_only_where_it_is_more_than_before(tmp_path: Path) -> None:
    peaks = JobPeaks(tmp_path, [tmp_path / "other"], 2, lambda: GPU_MB)
    peaks.tell({"f": 5000})
    assert read_peaks(tmp_path) == FamilyPeaks(2, GPU_MB, (("f", 5000),))
    before = (tmp_path / NAME).stat().st_ino
    peaks.tell({"f": 4000})
    assert (tmp_path / NAME).stat().st_ino == before
    peaks.tell({"g": 100})
    assert read_peaks(tmp_path) == FamilyPeaks(2, GPU_MB, (("f", 5000), ("g", 100)))
