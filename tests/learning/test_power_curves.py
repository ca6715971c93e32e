"""What runs under power limits leave in the usage profiles, and what the report makes of that."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.report_sentences import build_sentences
from slurm_colloc.report.summary_file import read_summary
from slurm_colloc.store.profiles import list_profiles

from ..report.generated import Truth, build_summary, make_gpu_rows, make_pack


def _answer(value: float, _at: float) -> float:
    return value


def test_under_a_lower_power_limit_only_the_curve_learns(tmp_path: Path) -> None:
    def run(number: int, limit_w: float, rate: float, watts: float) -> None:
        gpu = make_gpu_rows(60, power=lambda _at: watts)
        for row in gpu:
            row["power_limit_w"] = limit_w
        submission = f"2026010{number}-000000-a"
        truth = Truth(1, 0, 60, lambda _at: rate)
        learn_from_pack(make_pack(tmp_path, [truth], gpu=gpu, submission=submission))

    run(1, 700.0, 10.0, 500.0)
    run(2, 500.0, 9.0, 400.0)
    run(3, 500.0, 9.0, 400.0)
    (record,) = list_profiles(tmp_path)[0]
    full, low = record.power_curve
    assert [point.limit_w for point in (full, low)] == [700.0, 500.0]
    assert (full.runs, low.runs) == (1, 2)
    assert full.joules_per_step == pytest.approx(50.0, rel=0.02)
    assert low.joules_per_step == pytest.approx(400 / 9, rel=0.02)
    # What it does without a limit is not mixed with what it does under one.
    assert record.samples == 1
    assert record.steps_per_s is not None
    assert record.steps_per_s.mean == pytest.approx(10.0, rel=0.01)
    assert record.for_planning().power_curve == record.power_curve


def test_the_report_says_what_a_step_takes_and_which_limit_takes_less(tmp_path: Path) -> None:
    for number, (limit_w, rate, watts) in enumerate(
        [(700.0, 10.0, 600.0), (500.0, 9.5, 420.0), (700.0, 10.0, 600.0)], 1
    ):
        gpu = make_gpu_rows(60, power=partial(_answer, watts))
        for row in gpu:
            row["power_limit_w"] = limit_w
        truth = Truth(1, 0, 60, partial(_answer, rate))
        submission = f"2026010{number}-000000-a"
        pack = make_pack(tmp_path, [truth], gpu=gpu, submission=submission, max_slowdown=1.5)
        learn_from_pack(pack)
    summary = read_summary(pack)
    assert summary is not None
    (member,) = summary["members"]
    power = member.get("power")
    assert power is not None
    assert power["limit_w"] == 500
    assert power["slowdown"] == pytest.approx(10 / 9.5, rel=0.02)
    (advice,) = [one.say() for one in list_advice([summary]) if " W" in one.finding]
    assert "of its energy per step at 500 W, 1.05 times as long: csub --goal=energy" in advice
    told = dict(build_sentences(summary))
    assert "J per step" in told["Energy"]
    assert "power limit 700 W" in told["GPU"]


@pytest.mark.parametrize(
    ("held_w", "told"),
    [
        (600.0, ""),
        (700.0, "a power limit of 600 W was asked for, and 700 W held"),
        (None, "a power limit of 600 W was asked for, and which one held was not read"),
    ],
)
def test_the_report_says_where_another_limit_held(
    tmp_path: Path, held_w: float | None, told: str
) -> None:
    gpu = make_gpu_rows(60)
    for row in gpu:
        row["power_limit_w"] = held_w
    pack = make_pack(tmp_path, [Truth(1, 0, 60, partial(_answer, 10.0))], gpu=gpu)
    path = pack / "pack.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "power_limit_w": 600}))
    notes = [note for note in build_summary(pack, tmp_path)["notes"] if "power limit" in note]
    assert len(notes) == bool(told)
    assert all(note.startswith(told) for note in notes)
