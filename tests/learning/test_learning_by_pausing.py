"""What a pack teaches whose members were alone only while the others were paused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.measured_curve import RateAlone, RateSource
from slurm_colloc.model.usage_profile import MeasuredBy, ProfileRecord
from slurm_colloc.planning.job_needs import Question, build_subject
from slurm_colloc.planning.known_packs import is_known
from slurm_colloc.report.profile_view import render_profile
from slurm_colloc.store.profiles import list_profiles
from slurm_colloc.store.runner_requests import write_degree

from ..planning.known_jobs import CALIBRATION, POLICY, ROOMY, build_job
from ..report.generated import T0, Truth, make_gpu_rows, make_pack, write_stops
from ..report.test_paused_members import TURNS, make_members, measure

ALONE = {1: 0.1, 2: 0.2, 3: 0.3}
"""What each of the members takes of the SMs while it is alone."""


def make_gpu(turns: Mapping[int, list[tuple[float, float]]] = TURNS) -> list[dict[str, Any]]:
    """What is read of the GPU: of the second before each reading."""

    def read_sm(at: float) -> float:
        for member, windows in turns.items():
            if any(begin + 0.3 <= at - 1 and at <= end for begin, end in windows):
                return ALONE[member]
        return 0.9

    return make_gpu_rows(200, sm=read_sm)


def learn(tmp_path: Path, truths: list[Truth], **fields: Any) -> list[ProfileRecord]:
    pack = make_pack(tmp_path, truths, gpu=make_gpu())
    write_stops(pack, truths)
    write_degree(pack, measure(**fields))
    assert learn_from_pack(pack) == []
    return sorted(list_profiles(tmp_path)[0], key=lambda record: record.name)


def learn_alone(tmp_path: Path, rate: float, submission: str = "20260105-000000-a") -> None:
    pack = make_pack(
        tmp_path, [Truth(1, 0, 100, lambda _at: rate, gpu_memory_mb=700)], submission=submission,
        job_id="4900", gpu=make_gpu_rows(100, sm=lambda _at: 0.4),
    )  # fmt: skip
    assert learn_from_pack(pack) == []


def test_one_pack_of_unknown_jobs_lets_the_next_be_planned_by_what_they_take(
    tmp_path: Path,
) -> None:
    records = learn(tmp_path, make_members(gpu_memory_mb=1234.5))
    assert [record.name for record in records] == ["train1", "train2", "train3"]
    for number, record in enumerate(records, 1):
        assert record.measured_by is MeasuredBy.PAUSING
        assert record.steps_per_s is not None
        assert record.steps_per_s.mean == 10.0
        assert record.samples_per_s is not None
        assert record.samples_per_s.mean == pytest.approx(1280)
        assert record.gpu_memory_peak_mb == 1234.5
        assert record.host_memory_peak_mb == 512
        assert record.sm_active == pytest.approx(ALONE[number])
        assert record.dram_active == pytest.approx(0.25)
        assert record.cpu_cores == pytest.approx(1.5, rel=0.01)
        assert record.wait_share is None
        assert record.idle_power_w == 100
        assert record.steps_total is not None, "it came to its end"
        question = Question([build_job()], {0: record.for_planning()}, ROOMY, POLICY, CALIBRATION)
        assert is_known(build_subject(question, 0))
        assert "in moments in which the other members" in " ".join(
            render_profile(record, 100).split()
        )


def test_a_pack_that_is_summed_up_twice_teaches_once(tmp_path: Path) -> None:
    first = learn(tmp_path, make_members())
    assert first == learn(tmp_path / "again", make_members())
    for pack in (tmp_path / "packs").iterdir():
        assert learn_from_pack(pack) == []
    assert sorted(list_profiles(tmp_path)[0], key=lambda r: r.name) == first


def test_too_short_a_time_alone_says_nothing_of_the_gpu(tmp_path: Path) -> None:
    turns = {number: [(windows[0][0], windows[0][0] + 1.5)] for number, windows in TURNS.items()}
    for record in learn(tmp_path, make_members(turns)):
        assert record.steps_per_s is not None
        assert record.sm_active is None
        assert record.dram_active is None
        assert record.energy_w is None
        assert record.gpu_memory_peak_mb == 1000


def test_only_a_members_own_rate_with_all_threads_is_its_rate_alone(tmp_path: Path) -> None:
    rates = (
        RateAlone(1, 10.0, at=T0 + 62, thread_percentage=99),
        RateAlone(2, 10.0, at=T0 + 66, source=RateSource.FAMILY),
        RateAlone(3, 10.0, at=T0 + 70, source=RateSource.PROFILE),
    )
    for record in learn(tmp_path, make_members(), rates_alone=rates):
        assert record.measured_by is MeasuredBy.COMPANY
        assert (record.steps_per_s, record.sm_active, record.energy_w) == (None, None, None)
        # What it took is its own in company, too.
        assert (record.gpu_memory_peak_mb, record.host_memory_peak_mb) == (1000, 512)
        assert record.cpu_cores == pytest.approx(1.5, rel=0.01)
        assert "its rate alone is unknown" in " ".join(render_profile(record, 100).split())


def test_of_a_kind_in_company_the_one_that_took_most_leaves_a_profile(tmp_path: Path) -> None:
    sizes = {1: 900, 2: 1500, 3: 1200, 4: 800}
    truths = [Truth(n, 0, 60, lambda _at: 5, gpu_memory_mb=mb) for n, mb in sizes.items()]
    pack = make_pack(tmp_path, truths, one_family=True)
    write_degree(pack, measure(rates_alone=(RateAlone(1, 10.0, at=T0 + 30),)))
    for _ in range(2):
        assert learn_from_pack(pack) == []
        found = {r.measured_by: r.gpu_memory_peak_mb for r in list_profiles(tmp_path)[0]}
        assert found == {MeasuredBy.PAUSING: 900, MeasuredBy.COMPANY: 1500}


def test_a_run_alone_takes_the_place_of_what_was_measured_by_pausing(tmp_path: Path) -> None:
    before, *_ = learn(tmp_path, make_members(), rates_alone=(RateAlone(1, 10.0, at=T0 + 62),))
    learn_alone(tmp_path, 11)
    (record,) = [record for record in list_profiles(tmp_path)[0] if record.name == "train1"]
    assert record.measured_by is MeasuredBy.ALONE
    assert record.steps_per_s is not None
    assert (record.samples, record.steps_per_s.n) == (1, 1)
    assert record.steps_per_s.mean == pytest.approx(11, rel=0.01)
    assert record.sm_active == pytest.approx(0.4)
    assert record.gpu_memory_peak_mb == before.gpu_memory_peak_mb == 1000, "the larger peak"
    assert "alone on the GPU, for 10 s or more" in " ".join(render_profile(record, 100).split())


def test_pausing_adds_nothing_but_peaks_to_a_profile_of_runs_alone(tmp_path: Path) -> None:
    learn_alone(tmp_path, 11)
    (alone,) = list_profiles(tmp_path)[0]
    records = learn(tmp_path, make_members(), rates_alone=(RateAlone(1, 10.0, at=T0 + 62),))
    record, *_ = records
    assert record.steps_total is not None
    same = dataclasses.replace(
        record, gpu_memory_peak_mb=alone.gpu_memory_peak_mb,
        gpu_memory_usual_mb=alone.gpu_memory_usual_mb, updated_at=alone.updated_at,
        seen=alone.seen, steps_total=alone.steps_total, completed=alone.completed,
    )  # fmt: skip
    assert same == alone
    assert record.gpu_memory_peak_mb == 1000
