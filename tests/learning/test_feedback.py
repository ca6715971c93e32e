"""What a pack that was predicted teaches: the next one of the same jobs is predicted better."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import build_feedback, learn_from_pack
from slurm_colloc.model.plan import Capacity, MemberPlan, PackPlan, Policy, SharingMode
from slurm_colloc.model.usage_profile import ProfileRecord
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.report.member_figures import compute_figures, find_groups
from slurm_colloc.report.pack_run import PackRun, read_run
from slurm_colloc.report.profile_view import render_profile
from slurm_colloc.settings import Settings
from slurm_colloc.store.pack_directory import read_spec, write_spec
from slurm_colloc.store.profiles import list_profiles
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.plan.known_jobs import gather_knowledge

from ..report.generated import T0, Truth, make_gpu_rows, make_pack

RATES = {1: 20.0, 2: 40.0, 3: 30.0}
CAPACITY = Capacity(cpus_per_gpu=48, host_memory_mb_per_gpu=400_000, gpu_memory_mb=143_771)
POLICY = Policy(modes=(SharingMode.MPS,), slowdown_bound=3.0)


def run_alone(root: Path, numbers: Sequence[int]) -> None:
    """Each job once by itself, so that there is a usage profile of it."""
    for number in numbers:
        pack = make_pack(
            root,
            [Truth(number, 0, 100, lambda _at, n=number: RATES[n])],  # type: ignore[misc]
            submission=f"20260101-00000{number}-a",
            job_id=f"471{number}",
            gpu=make_gpu_rows(100, sm=lambda _at: 0.3, power=lambda _at: 250),
        )
        assert learn_from_pack(pack) == []


def plan_again(root: Path, pack: Path, numbers: Sequence[int]) -> PackPlan:
    """As csub plans the same jobs, by what the store knows of them now."""
    candidates = []
    for number in numbers:
        job = dataclasses.replace(read_spec(pack, number).job, came_together=True)
        script = (pack / "members" / f"{number:04}" / "script").read_bytes()
        candidates.append(Candidate(job, script, {}))
    known = gather_knowledge(candidates, Settings(state_dir=str(root)))
    jobs = [candidate.job for candidate in candidates]
    (planned,) = plan(jobs, known.profiles, CAPACITY, POLICY, known.calibration).packs
    assert planned.known
    return planned


def make_planned(
    root: Path,
    place: int,
    rates: Mapping[int, float],
    plans: Mapping[int, MemberPlan],
    *,
    length_s: float = 160.0,
    late: Mapping[int, float] | None = None,
    limits: Mapping[int, int] | None = None,
    mode: SharingMode = SharingMode.MPS,
) -> Path:
    """A pack that has run as it was planned; `late` says who began later."""
    truths = [
        Truth(number, (late or {}).get(number, 0.0), length_s, lambda _at, r=rate: r)  # type: ignore[misc]
        for number, rate in rates.items()
    ]
    planned = {n: p.thread_percentage for n, p in plans.items() if p.thread_percentage is not None}
    return make_pack(
        root,
        truths,
        submission=f"20260201-0000{place:02}-a",
        job_id=f"48{place:02}",
        plans=plans,
        mode=mode,
        thread_limits=planned if limits is None else limits,
    )


def read_profiles(root: Path) -> dict[float, ProfileRecord]:
    """Usage profiles by their rates alone."""
    records, problems = list_profiles(root)
    assert problems == []
    return {round(r.steps_per_s.mean): r for r in records if r.steps_per_s is not None}


def predict(*slowdowns: float) -> dict[int, MemberPlan]:
    return {
        number: MemberPlan(number - 1, 2, 100, 6000, predicted_slowdown=slowdown)
        for number, slowdown in enumerate(slowdowns, 1)
    }


def load(pack: Path, root: Path) -> tuple[PackRun, object]:
    run = read_run(pack, root)
    return run, build_feedback(run, compute_figures(run))


def test_a_second_pack_of_the_same_jobs_is_predicted_better(tmp_path: Path) -> None:
    run_alone(tmp_path, (1, 2, 3))
    scripts = make_pack(tmp_path, [Truth(n, 0, 10, lambda _: 1) for n in RATES], submission="x")
    planned = plan_again(tmp_path, scripts, (1, 2, 3))
    assert planned.predicted_slowdown is not None
    assert all(member.model_slowdown is None for member in planned.members)
    model = {member.job_index + 1: member.predicted_slowdown for member in planned.members}
    # The model knows nothing of what slows these down: one very much, one not at all.
    truth = {n: (model[n] or 0.0) + extra for n, extra in ((1, 0.5), (2, 0.1), (3, 0.0))}
    errors = []
    for place in range(4):
        planned = plan_again(tmp_path, scripts, (1, 2, 3))
        plans = {member.job_index + 1: member for member in planned.members}
        found = {n: p.predicted_slowdown or 0.0 for n, p in plans.items()}
        errors.append(sum(abs(found[n] - truth[n]) for n in RATES))
        print(f"pack {place + 1}: off by {errors[-1] / 3:.3f} on average")
        if place:
            base = {n: p.model_slowdown for n, p in plans.items()}
            assert base == pytest.approx(model), "the model itself has learnt nothing"
        rates = {n: RATES[n] / truth[n] for n in RATES}
        pack = make_planned(tmp_path, place, rates, plans)
        for _ in range(2):
            assert learn_from_pack(pack) == []
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    assert errors[1] < 0.7 * errors[0]
    assert errors[3] < 0.35 * errors[0]
    records = read_profiles(tmp_path)
    assert [r.sensitivity.n for r in records.values() if r.sensitivity] == [4, 4, 4]
    learnt = records[20].for_planning()
    assert learnt.sensitivity == pytest.approx(0.5 * 4 / 6, abs=0.02)


def test_both_numbers_are_shown_with_their_packs(tmp_path: Path) -> None:
    run_alone(tmp_path, (1, 2))
    assert "Sensitivity: unknown" in render_profile(read_profiles(tmp_path)[20], 100)
    learn_from_pack(make_planned(tmp_path, 1, {1: 12.5, 2: 32.0}, predict(1.3, 1.25)))
    records = read_profiles(tmp_path)
    text = render_profile(records[20], 100)
    assert re.search(r"Sensitivity: \+0\.(100|099|101) on its slowdown, over 1 pack", text)
    assert re.search(r"Pressure:    [+-]0\.00\d on its partners' slowdown, over 1 pack", text)
    assert re.search(r"Pressure:    \+0\.06\d on", render_profile(records[40], 100))
    learn_from_pack(make_planned(tmp_path, 2, {1: 12.5, 2: 32.0}, predict(1.3, 1.25)))
    assert "over 2 packs" in render_profile(read_profiles(tmp_path)[20], 100)


def test_what_was_corrected_is_compared_with_the_model_alone(tmp_path: Path) -> None:
    run_alone(tmp_path, (1, 2))
    plans = predict(1.3, 1.25)
    plans[1] = dataclasses.replace(plans[1], predicted_slowdown=1.6, model_slowdown=1.3)
    learn_from_pack(make_planned(tmp_path, 1, {1: 12.5, 2: 32.0}, plans))
    assert read_profiles(tmp_path)[20].for_planning().sensitivity == pytest.approx(0.1, abs=0.01)


def test_only_time_with_all_who_were_planned_together_counts(tmp_path: Path) -> None:
    run_alone(tmp_path, (1, 2, 3))
    plans = predict(1.6, 1.6, 1.5)
    # Until the third comes, the others are hardly slowed down.
    pack = make_pack(
        tmp_path,
        [
            Truth(1, 0, 200, lambda at: 19 if at < 100 else 12.5),
            Truth(2, 0, 200, lambda at: 38 if at < 100 else 25),
            Truth(3, 100, 200, lambda _: 20),
        ],
        submission="20260201-000000-a",
        plans=plans,
        mode=SharingMode.MPS,
    )
    _, feedback = load(pack, tmp_path)
    found = {member.number: member.residual for member in feedback.members}  # type: ignore[attr-defined]
    assert found == pytest.approx({1: 0.0, 2: 0.0, 3: 0.0}, abs=0.02)


def test_who_joined_a_running_pack_was_planned_with_those_that_were_there(tmp_path: Path) -> None:
    run_alone(tmp_path, (1, 2, 3))
    plans = predict(1.05, 1.05, 1.5)
    pack = make_planned(
        tmp_path, 1, {1: 12.5, 2: 25.0, 3: 20.0}, plans, late={3: 100.0}, length_s=200
    )
    for number, at in ((2, T0 - 50), (3, T0 + 99)):
        spec = dataclasses.replace(read_spec(pack, number), joined="s", joined_at=at)
        write_spec(pack / "members" / f"{number:04}", spec)
    run, feedback = load(pack, tmp_path)
    assert find_groups(run) == {1: {1, 2}, 2: {1, 2}, 3: {1, 2, 3}}
    found = {member.number: member.residual for member in feedback.members}  # type: ignore[attr-defined]
    assert found == pytest.approx({1: 0.55, 2: 0.55, 3: 0.0}, abs=0.03)


def test_a_pack_whose_members_never_ran_all_together_teaches_by_those_that_did(
    tmp_path: Path,
) -> None:
    run_alone(tmp_path, (1, 2, 3))
    scripts = make_pack(tmp_path, [Truth(n, 0, 10, lambda _: 1) for n in RATES], submission="x")
    both = plan_again(tmp_path, scripts, (1, 2))
    assert both.predicted_slowdown is not None
    # Two run far slower than predicted, so the third comes only when one of them has ended.
    limit = both.members[0].thread_percentage
    plans = {
        number: dataclasses.replace(plan, thread_percentage=limit)
        for number, plan in predict(1.2, 1.2, 1.2).items()
    }
    truth = {1: both.predicted_slowdown[0] + 0.4, 2: both.predicted_slowdown[1] + 0.1}
    pack = make_pack(
        tmp_path,
        [
            Truth(1, 0, 160, lambda _: RATES[1] / truth[1]),
            Truth(2, 0, 200, lambda _: RATES[2] / truth[2]),
            Truth(3, 170, 200, lambda _: 20),
        ],
        submission="20260201-000000-a",
        plans=plans,
        mode=SharingMode.MPS,
        thread_limits={} if limit is None else dict.fromkeys(RATES, limit),
    )
    assert learn_from_pack(pack) == []
    records = read_profiles(tmp_path)
    assert records[20].for_planning().sensitivity == pytest.approx(0.4 / 3, abs=0.01)
    assert records[40].for_planning().sensitivity == pytest.approx(0.1 / 3, abs=0.01)
    assert records[30].sensitivity is None


@pytest.mark.parametrize("case", ["unknown", "other mode", "other limit", "short", "no profile"])
def test_what_cannot_be_compared_teaches_nothing(tmp_path: Path, case: str) -> None:
    if case != "no profile":
        run_alone(tmp_path, (1, 2))
    plans = predict(1.3, 1.3)
    if case == "unknown":
        plans = {n: dataclasses.replace(p, predicted_slowdown=None) for n, p in plans.items()}
    pack = make_planned(
        tmp_path,
        1,
        {1: 12.5, 2: 25.0},
        plans,
        limits={1: 50, 2: 50} if case == "other limit" else None,
        mode=SharingMode.TIMESLICE if case == "other mode" else SharingMode.MPS,
        length_s=25.0 if case == "short" else 160.0,
    )
    _, feedback = load(pack, tmp_path)
    assert feedback is None
    assert learn_from_pack(pack) == []
    assert all(record.sensitivity is None for record in list_profiles(tmp_path)[0])
