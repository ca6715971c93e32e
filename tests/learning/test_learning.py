"""What a pack that has run leaves in the usage profiles, and that reading it leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.plan import PeakSource
from slurm_colloc.report.member_figures import compute_figures
from slurm_colloc.report.pack_run import read_run
from slurm_colloc.report.pack_summary import write_summary
from slurm_colloc.report.summary_file import read_summary
from slurm_colloc.store.profiles import list_profiles

from ..report.generated import Truth, build_summary, make_pack


def test_a_summary_teaches_nothing(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)])
    build_summary(pack, tmp_path)
    assert read_summary(pack) is None
    run = read_run(pack, tmp_path)
    write_summary(run, compute_figures(run))
    assert read_summary(pack) is not None
    assert not (tmp_path / "profiles").exists()
    learn_from_pack(pack)
    assert len(list_profiles(tmp_path)[0]) == 1


def test_a_pack_that_is_summed_up_twice_teaches_once(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)])
    learn_from_pack(pack)
    learn_from_pack(pack)
    (record,) = list_profiles(tmp_path)[0]
    assert record.samples == 1


def test_only_time_alone_teaches(tmp_path: Path) -> None:
    pack = make_pack(
        tmp_path,
        [Truth(1, 0, 200, lambda at: 10 if at < 60 else 6), Truth(2, 60, 200, lambda _: 9)],
    )
    learn_from_pack(pack)
    found = {record.name: record for record in list_profiles(tmp_path)[0]}
    alone = found["train1"].steps_per_s
    assert alone is not None
    assert alone.mean == pytest.approx(10, rel=0.01)
    assert found["train2"].steps_per_s is None


def test_the_peak_of_the_first_seconds_is_the_allocator_s_word(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5, allocator_mb=(6042.0, 238.0))])
    learn_from_pack(pack)
    (record,) = list_profiles(tmp_path)[0]
    # NVML's 1000 less what was reserved then is outside the allocator.
    assert record.gpu_memory_peak_mb == 6042 + 762
    assert record.gpu_memory_by is PeakSource.ALLOCATOR
    assert record.for_planning().gpu_memory_by is PeakSource.ALLOCATOR
    summary = read_summary(pack)
    assert summary is not None
    assert summary["members"][0]["gpu_memory_mb"] == {
        "peak": 6804,
        "attribution": "per_process",
        "by": "allocator",
        "allocator_peak": 6042,
        "outside_allocator": 762,
    }


def test_without_the_allocator_the_peak_is_nvml_s(tmp_path: Path) -> None:
    learn_from_pack(make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)]))
    (record,) = list_profiles(tmp_path)[0]
    assert (record.gpu_memory_peak_mb, record.gpu_memory_by) == (1000, PeakSource.NVML)


def test_what_lies_outside_the_allocator_is_said_to_be_assumed(tmp_path: Path) -> None:
    truth = Truth(1, 0, 60, lambda _at: 5, gpu_memory_mb=None, allocator_mb=(6042.0, 238.0))
    pack = make_pack(tmp_path, [truth])
    learn_from_pack(pack)
    summary = read_summary(pack)
    assert summary is not None
    (member,) = summary["members"]
    assert member["gpu_memory_mb"] is not None
    assert member["gpu_memory_mb"]["outside_allocator"] is None
    assert any("768 MB are assumed" in note for note in member["notes"])
