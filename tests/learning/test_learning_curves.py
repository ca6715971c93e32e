"""What a pack has measured of how many run at once is kept for the next plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.measured_curve import (
    CurvePoint,
    DegreeDecision,
    DegreeState,
    FamilyRate,
    KnownCurve,
    KnownPoint,
    RateAlone,
    RateSource,
)
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.report.profile_view import render_list, render_profile
from slurm_colloc.store.curves import (
    add_curves,
    forget_curves,
    list_curves,
    read_curves,
)
from slurm_colloc.store.profiles import list_profiles
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree

from ..report.generated import T0, Truth, make_pack

ALL = (1, 2, 3, 4)


def measure(
    points: dict[tuple[int, ...], float],
    rates: tuple[RateAlone, ...] = (RateAlone(1, 10.0),),
    at: float = T0 + 50,
) -> DegreeRecord:
    """What their runner has measured: who ran, and the sum of their progress."""
    curve = [CurvePoint(1, 1.0, members=(1,))]
    curve += [
        CurvePoint(len(members), stp, 0.1, len(members) / stp, 1, 1.5, 2.0, members)
        for members, stp in points.items()
    ]
    decision = DegreeDecision(at, DegreeState.SETTLED, 4, 4, 3.6, "it pays")
    return DegreeRecord(
        1, DegreeState.SETTLED, 4, 4, curve=tuple(curve), rates_alone=rates, decisions=(decision,)
    )


def learn(
    root: Path, record: DegreeRecord, submission: str = "20260101-000000-a", *, one: bool = True
) -> list[KnownCurve]:
    pack = make_pack(
        root, [Truth(n, 0, 60, lambda _at: 9) for n in ALL], one_family=one, submission=submission,
        job_id=f"47{len(list(root.glob('packs/*'))):02}",
    )  # fmt: skip
    write_degree(pack, record)
    for _ in range(2):
        # It may be summed up more than once, and counts once.
        assert learn_from_pack(pack) == []
    curves, problems = list_curves(root)
    assert problems == []
    return curves


def test_a_curve_is_kept_with_its_date_and_how_many_packs_it_is_of(tmp_path: Path) -> None:
    (curve,) = learn(tmp_path, measure({ALL[:2]: 1.9, ALL: 3.6}))
    (family,) = curve.families
    assert family == list_profiles(tmp_path)[0][0].family
    assert curve.gpu_model == "NVIDIA H200"
    assert curve.rates_alone == (FamilyRate(family, 10.0),)
    assert curve.points == (
        KnownPoint(2, 1.9, 2 / 1.9, T0 + 50),
        KnownPoint(4, 3.6, 4 / 3.6, T0 + 50),
    )
    found, problems = read_curves(tmp_path, "NVIDIA H200", [family])
    assert (found, problems) == ([curve], [])
    assert read_curves(tmp_path, "NVIDIA H100", [family]) == ([], [])
    # The next pack measures some of it again.
    (curve,) = learn(tmp_path, measure({ALL[:3]: 2.5, ALL: 3.2}, at=T0 + 900), "20260102-000000-b")
    assert [(p.degree, p.stp, p.at - T0, p.runs) for p in curve.points] == [
        (2, 1.9, 50, 1),
        (3, 2.5, 900, 1),
        (4, 3.2, 900, 2),
    ]


def test_each_point_counts_to_the_kinds_that_ran_there(tmp_path: Path) -> None:
    rates = tuple(RateAlone(n, 5.0 * n) for n in ALL)
    curves = learn(tmp_path, measure({(1, 2): 1.8, ALL: 3.3}, rates), one=False)
    assert sorted((len(c.families), c.points[0].degree) for c in curves) == [(2, 2), (4, 4)]
    mix = next(curve for curve in curves if len(curve.families) == 4)
    assert mix.names == ("train1", "train2", "train3", "train4")
    assert sorted(rate.steps_per_s for rate in mix.rates_alone) == [5.0, 10.0, 15.0, 20.0]
    assert read_curves(tmp_path, "NVIDIA H200", mix.families)[0] == [mix]


@pytest.mark.parametrize(
    ("rates", "count"),
    [
        ((), 1),
        ((RateAlone(1, 10.0), RateAlone(2, 10.4)), 1),
        # One figure of several of one kind: the mean, whatever the host does.
        ((RateAlone(1, 10.0), RateAlone(2, 16.0)), 1),
        ((RateAlone(1, 10.0), RateAlone(2, 3.0, source=RateSource.FAMILY)), 1),
        ((RateAlone(1, 10.0), RateAlone(2, 3.0, thread_percentage=50)), 1),
    ],
)
def test_of_one_kind_there_is_one_rate_alone(
    tmp_path: Path, rates: tuple[RateAlone, ...], count: int
) -> None:
    assert len(learn(tmp_path, measure({ALL: 3.6}, rates))) == count


def test_a_script_that_does_this_or_that_by_its_arguments_has_no_curve(tmp_path: Path) -> None:
    truths = [Truth(n, 0, 60, lambda _at: 9) for n in ALL]
    pack = make_pack(tmp_path, truths, one_family=True)
    for number in (3, 4):
        spec = pack / "members" / f"{number:04}" / "spec.json"
        spec.write_text(spec.read_text().replace('"--lr"', '"--deep"'))
    for deep, count in ((7.0, 1), (6.0, 0)):
        forget_curves(tmp_path, None)
        rates = (RateAlone(1, 10.0), RateAlone(3, deep))
        write_degree(pack, measure({ALL: 3.6}, rates))
        assert learn_from_pack(pack) == []
        assert len(list_curves(tmp_path)[0]) == count


def test_a_pack_that_measured_nothing_leaves_no_curve(tmp_path: Path) -> None:
    assert learn(tmp_path, measure({})) == []
    # Of a member whose record is gone it is not known what it was.
    assert learn(tmp_path, measure({(1, 2, 9): 2.5}), "20260102-000000-b") == []


def test_it_is_shown_and_forgotten_with_the_profiles(tmp_path: Path) -> None:
    (curve,) = learn(tmp_path, measure({ALL[:2]: 1.9, ALL: 3.6}))
    (record, *_), _ = list_profiles(tmp_path)
    text = " ".join(render_profile(record, 120, [curve]).split())
    assert "At once: times the progress of one alone by mps: 2: 1.9, 4: 3.6 (1 run" in text
    assert "4 (3.6x)" in render_list([record], 160, [curve])
    forget_curves(tmp_path, {(record.family, "NVIDIA H100")})
    forget_curves(tmp_path, {("0" * 32, "NVIDIA H200")})
    assert list_curves(tmp_path)[0] == [curve]
    forget_curves(tmp_path, {(record.family, "NVIDIA H200")})
    assert list_curves(tmp_path) == ([], [])


def test_what_cannot_be_read_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    (curve,) = learn(tmp_path, measure({ALL: 3.6}))
    (path,) = (tmp_path / "curves").glob("*.json")
    path.write_text('{"schema": 1, "families"')
    assert list_curves(tmp_path)[0] == []
    for problems in (
        list_curves(tmp_path)[1],
        read_curves(tmp_path, "NVIDIA H200", curve.families)[1],
        add_curves(tmp_path, [curve]),
    ):
        assert problems[0].startswith(f"{path} is damaged")
    forget_curves(tmp_path, {(curve.families[0], "NVIDIA H200")})
    assert path.read_text() == '{"schema": 1, "families"'
    # A record of others in this place tells of nobody here.
    path.unlink()
    add_curves(tmp_path, [KnownCurve(("x",), "NVIDIA H200", SharingMode.MPS, ())])
    next((tmp_path / "curves").glob("*.json")).rename(path)
    assert read_curves(tmp_path, "NVIDIA H200", curve.families) == ([], [])
    forget_curves(tmp_path, None)
    assert list((tmp_path / "curves").glob("*.json")) == []
