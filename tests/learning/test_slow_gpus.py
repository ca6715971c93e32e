"""What packs teach of slow GPUs, and of trainings that change while they run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.summary_file import Summary, read_summary
from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc.store.profiles import list_profiles

from ..report.generated import MODEL, Truth, make_gpu_rows, make_pack

SLOW, FAST, THIRD = (f"GPU-{n}" + "0" * 7 for n in range(1, 4))


def run(
    root: Path, number: int, uuid: str, rate: float, *, members: int = 1, thermal: float = 0.0
) -> Summary:
    """A job, or several of it, on one GPU; the pack's summary."""
    rows = make_gpu_rows(100, uuid=uuid)
    for tick, row in enumerate(rows):
        row["throttle_thermal_s"] = thermal * tick
    pack = make_pack(
        root,
        [Truth(n, 0, 100, lambda _at: rate) for n in range(1, members + 1)],
        submission=f"20260101-0000{number:02}-a",
        job_id=str(4700 + number),
        gpu=rows,
        gpus=(uuid,),
    )
    assert learn_from_pack(pack) == []
    summary = read_summary(pack)
    assert summary is not None
    return summary


def find_slow(root: Path) -> list[str]:
    return [pace.uuid for pace in read_paces(root, MODEL) if pace.is_slow]


def test_a_slow_gpu_is_told_and_does_not_spoil_what_is_known(tmp_path: Path) -> None:
    for number, uuid in enumerate([FAST, THIRD, FAST]):
        run(tmp_path, number, uuid, 20.0)
    assert run(tmp_path, 10, SLOW, 13.4)["gpus"][0]["slow"] is None
    run(tmp_path, 11, SLOW, 13.4)
    assert find_slow(tmp_path) == []
    summary = run(tmp_path, 12, SLOW, 13.4)
    assert find_slow(tmp_path) == [SLOW]
    told = f"{SLOW} (node1) made 0.67 of the usual rate in 3 of 3 packs"
    assert summary["gpus"][0]["slow"] == told
    assert any(told in advice.say() for advice in list_advice([summary]))
    run(tmp_path, 13, SLOW, 13.4)
    (record,) = list_profiles(tmp_path)[0]
    assert record.steps_per_s is not None
    assert record.steps_per_s.last == pytest.approx(20.0, rel=0.02)


def test_members_that_share_make_no_gpu_slow(tmp_path: Path) -> None:
    for number, uuid in enumerate([FAST, THIRD, SLOW]):
        run(tmp_path, number, uuid, 20.0)
    for number in range(10, 15):
        run(tmp_path, number, SLOW, 5.0, members=4)
    assert find_slow(tmp_path) == []


def test_a_gpu_whose_clocks_heat_holds_down_is_slow(tmp_path: Path) -> None:
    summary = run(tmp_path, 1, SLOW, 20.0, thermal=0.2)
    assert find_slow(tmp_path) == [SLOW]
    assert summary["gpus"][0]["slow"] == f"{SLOW} (node1) was throttled 21 % of the time"


def test_a_damaged_file_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, 1, SLOW, 20.0)
    (path,) = (tmp_path / "gpus").glob("*.json")
    path.write_text("{")
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 5)], submission="20260101-000009-a")
    (problem,) = learn_from_pack(pack)
    assert "how fast its GPU is was not noted" in problem
    assert read_summary(pack) is not None
    assert path.read_text() == "{"


@pytest.mark.parametrize("rate", ["0", "-1"])
def test_a_file_with_what_is_no_rate_tells_nothing(tmp_path: Path, rate: str) -> None:
    for number, uuid in enumerate((SLOW, FAST)):
        run(tmp_path, number, uuid, 20.0)
    (path,) = (tmp_path / "gpus").glob("*.json")
    assert [pace.rate for pace in read_paces(tmp_path)] == [1.0, 1.0]
    text = re.sub(r'("steps_per_s": ?)[0-9.e+-]+', rf"\g<1>{rate}", path.read_text())
    path.write_text(text)
    assert rate in text
    assert read_paces(tmp_path) == []


def test_a_training_that_changes_is_known_by_its_longest_phase(tmp_path: Path) -> None:
    truth = Truth(1, 0, 260, lambda at: 10.0 if at < 80 else 20.0)
    assert learn_from_pack(make_pack(tmp_path, [truth], gpu=make_gpu_rows(260))) == []
    (record,) = list_profiles(tmp_path)[0]
    assert record.steps_per_s is not None
    assert record.steps_per_s.mean == pytest.approx(20.0, rel=0.02)
