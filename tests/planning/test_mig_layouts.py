"""MIG layouts: chosen exactly by the GPU's placements, members seated, misfits told by how much."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import NoPackPossible, UsageProblem
from slurm_colloc.model.job import Job, ShareRequest
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import MIG_TABLES, InstanceProfile
from slurm_colloc.model.plan import Capacity, Plan, Policy, SharingMode, UsageProfile
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.choose_layout import choose_layout, find_misfit, list_layouts
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from slurm_colloc.planning.planned_gpu import PlannedGpu, choose_planned_gpu
from slurm_colloc.planning.seats import (
    Seat,
    Seating,
    build_seats,
    compute_own_slowdown,
    fits,
    read_seats,
)
from slurm_colloc.report.plan_view import render_plan

from .known_jobs import (
    CALIBRATION,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
    build_job,
    build_profile,
)

GPUS = {"H100 80GB": 81_559, "H200": 143_771, "A30": 24_576, "A100 80GB": 81_920}
H100 = choose_planned_gpu(81_559, ("NVIDIA H100 80GB HBM3",))

SUBJECTS = st.builds(
    Subject,
    index=st.just(0),
    cpus=st.just(1),
    host_memory_mb=st.none(),
    gpu_memory_mb=st.none() | st.integers(500, 50_000),
    run_s=st.sampled_from([60.0, 100.0, 400.0]),
    load=st.none() | st.builds(Load, st.just(0.5), st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    max_slowdown=st.sampled_from([1.0, 1.5, 4.0]),
    margin=st.just(0.08),
)


def try_all(subjects: Sequence[Subject], gpu: PlannedGpu) -> tuple[float, float, float] | None:
    """The best there is, over all layouts and all ways to sit on them."""
    best: tuple[float, float, float] | None = None
    for profiles in itertools.combinations_with_replacement(gpu.profiles, len(subjects)):
        placed = place(profiles)
        if placed is None:
            continue
        for seats in set(itertools.permutations(build_seats(placed, gpu))):
            rank = rate(subjects, seats)
            if rank is not None and (best is None or rank < best):
                best = rank
    return best


def rate(subjects: Sequence[Subject], seats: Sequence[Seat]) -> tuple[float, float, float] | None:
    passed, ends = 0.0, []
    for subject, seat in zip(subjects, seats, strict=True):
        if not fits(subject, seat):
            return None
        slowdown = compute_own_slowdown(subject, seat)
        ends.append(subject.run_s * slowdown)
        if subject.load is not None:
            passed = max(passed, slowdown * (1 + subject.margin) / subject.max_slowdown - 1)
    return Seating((), passed, max(ends), sum(ends)).rank


@given(st.lists(SUBJECTS, min_size=1, max_size=4), st.sampled_from(list(GPUS.items())))
def test_no_layout_and_no_seating_is_better_than_the_chosen_one(
    subjects: list[Subject], named: tuple[str, int]
) -> None:
    gpu = choose_planned_gpu(named[1], (f"NVIDIA {named[0]}",))
    chosen, best = choose_layout(subjects, gpu), try_all(subjects, gpu)
    if chosen is None:
        assert best is None
        return
    assert best is not None
    assert chosen.seating.rank == pytest.approx(best)
    taken = [chosen.find_seat(member) for member in range(len(subjects))]
    assert rate(subjects, taken) == pytest.approx(best)
    masks = [seat.placed.placement.mask for seat in chosen.seats]
    assert sum(masks) == _join(masks)


def _join(masks: Sequence[int]) -> int:
    joined = 0
    for mask in masks:
        joined |= mask
    return joined


@given(st.lists(st.none() | st.integers(0, 90_000), min_size=1, max_size=7))
def test_a_misfit_is_told_exactly_where_no_layout_has_room(needs: list[int | None]) -> None:
    for gpu in (H100, choose_planned_gpu(24_576, ("NVIDIA A30",))):
        subjects = [Subject(0, 1, None, need, 60.0, None, 1.5) for need in needs]
        misfit = find_misfit(needs, gpu)
        assert (misfit is None) == (choose_layout(subjects, gpu) is not None)
        if misfit is not None and len(needs) <= gpu.slices:
            need, room_mb = misfit
            assert need > room_mb


def test_every_model_s_layouts_lie_within_its_slices() -> None:
    for model, profiles in MIG_TABLES.items():
        plain: tuple[InstanceProfile, ...] = tuple(p for p in profiles if not p.attributes)
        most = 4 if model == "A30" else 7
        assert list_layouts(plain, most), model
        assert not list_layouts(plain, most + 1), model


def make(
    jobs: Sequence[object], known: dict[int, UsageProfile], share: str, **changes: object
) -> tuple[Plan, str]:
    asked = ShareRequest.parse(share)
    words = asked.layout.count("g") or 4
    capacity = changes.pop("capacity", ROOMY)
    assert isinstance(capacity, Capacity)
    policy = Policy(
        degree=words, degree_max=7, mode=SharingMode.MIG, modes=(SharingMode.MIG,), share=share
    )
    policy = dataclasses.replace(policy, **changes)  # type: ignore[arg-type]
    made = plan(jobs, known, capacity, policy, CALIBRATION)  # type: ignore[arg-type]
    explained = build_explanation(made, jobs, known, capacity, policy, CALIBRATION)  # type: ignore[arg-type]
    return made, render_plan(explained, 100, explain=True)


def test_the_members_needs_choose_the_layout_and_the_picture_shows_who_sits_where() -> None:
    needs = (60_000, 30_000, 10_000, 9000)
    jobs = [build_job(n, gpu_memory_mb=mb) for n, mb in enumerate(needs, 1)]
    made, text = make(jobs, {}, "mig")
    (pack,) = made.packs
    assert pack.mode is SharingMode.MIG
    assert [one.word for one in pack.layout] == ["3g", "2g", "1g", "1g"]
    assert [member.instance for member in pack.members] == ["3g", "2g", "1g", "1g"]
    lines = [line.strip() for line in text.splitlines()]
    top = lines.index("+--------+--------+-----------------+-----------------------------------+")
    assert lines[top + 1].replace(" ", "") == "|1g|1g|2g|3g|"
    assert lines[top + 4].replace(" ", "") == "|/4|/3|/2|/1|"
    assert "what MIG costs them compared with MPS is not known" in " ".join(text.split())
    # Of what nobody has measured the time leaves room for the worst that an instance may do.
    walls = [member.wall_limit_s or 0 for member in pack.members]
    assert walls[3] > walls[1] > walls[0] > 1200
    longest = walls[3] / (jobs[3].time_limit_s or 1)
    (told,) = [reason for reason in pack.reasons if reason.startswith("on these instances wall")]
    assert f"are at most --time times {walls[0] / (jobs[0].time_limit_s or 1):g} to " in told
    assert f" to {longest:g}: of what is not known the worst is assumed" in told
    asked = [dataclasses.replace(job, max_slowdown=1.5) for job in jobs]
    (pack,) = make(asked, {}, "mig")[0].packs
    assert not any("wall limits" in reason for reason in pack.reasons)
    assert {member.wall_limit_s for member in pack.members} == {
        round(1.5 * (job.time_limit_s or 0)) for job in jobs
    }


def test_more_members_than_instances_wait_for_one_that_holds_them() -> None:
    jobs = [build_job(n, gpu_memory_mb=mb) for n, mb in enumerate((30_000, 9000, 9000, 60_000), 1)]
    made, text = make(jobs, {}, "mig=4g+2g", pack_size=4)
    (pack,) = made.packs
    assert (pack.degree, len(pack.members), len(pack.layout)) == (2, 4, 2)
    by_job = {member.job_index: member.instance for member in pack.members}
    assert by_job[3] == "4g"
    assert "2 members wait until an instance that is large enough is free" in " ".join(text.split())


@pytest.mark.parametrize("pack_size", [None, 4])
@pytest.mark.parametrize("share", ["mig=2g+1g", "mig=2g+1g!"])
def test_a_job_that_fits_no_instance_is_refused_with_by_how_much(
    share: str, pack_size: int | None
) -> None:
    jobs = [build_job(n, gpu_memory_mb=mb) for n, mb in enumerate((60_000, 9000, 9000), 1)]
    with pytest.raises(NoPackPossible) as refused:
        make(jobs, {}, share, pack_size=pack_size)
    assert refused.value.message == (
        "job1 needs 60000 MB of GPU memory, and the largest instance of --share=mig=2g+1g, "
        "2g.35gb, has room for 31616 MB: 28384 MB too little"
    )
    assert refused.value.hint == (
        "name a larger instance in --share, or submit this job with another --share"
    )


def test_a_large_job_sits_with_small_ones_where_only_unequal_instances_hold_them() -> None:
    big = build_profile(0.2, 0.1, 0.4, gpu_memory_peak_mb=50_000)
    jobs, known = build_call(("big", big), *[("small", SMALL)] * 3)
    made, text = make(jobs, known, "mig", slowdown_bound=2.5)
    (pack,) = made.packs
    assert next(m.instance for m in pack.members if m.job_index == 0) == "3g"
    assert pack.predicted_slowdown is not None
    assert max(pack.predicted_slowdown) * 1.05 <= 2.5
    assert "more); the slowest member" in " ".join(text.split())


def test_a_bound_that_an_instance_would_pass_keeps_jobs_apart() -> None:
    jobs, known = build_call(*[("small", SMALL)] * 4)
    made, _ = make(jobs, known, "mig", slowdown_bound=1.1)
    for pack in made.packs:
        assert max(pack.predicted_slowdown or (1.0,)) <= 1.1


def test_compute_instances_share_the_memory_of_a_gpu_instance() -> None:
    seats = read_seats("3c.7g+4c.7g", H100)
    assert [seat.instance for seat in seats] == [0, 0]
    assert seats[0].room_mb == int(81_152 * 0.95) // 2
    assert seats[0].stretch > seats[1].stretch


def test_names_that_another_driver_rounds_otherwise_are_understood() -> None:
    assert [seat.profile.name for seat in read_seats("3g.39gb+1g.11gb", H100)] == [
        "3g.40gb",
        "1g.10gb",
    ]
    seats = read_seats("3g.77gb+1g", choose_planned_gpu(None))
    assert [(seat.word, seat.room_mb) for seat in seats] == [("3g.77gb", None), ("1g", None)]


def test_the_names_of_a_layout_tell_the_gpu_that_nothing_else_does() -> None:
    jobs = [build_job(n) for n in range(1, 8)]
    nowhere = dataclasses.replace(ROOMY, gpu_memory_mb=None)
    made, _ = make(jobs, {}, "mig=" + "+".join(["1g.18gb"] * 7), capacity=nowhere)
    (pack,) = made.packs
    assert {one.memory_mb for one in pack.layout} == {16_384}


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("4g+4g", "it has 8 compute slices, the GPU has 7"),
        ("3g+3g+1g", "it has 9 memory slices, the GPU has 8"),
        ("1g.20gb+1g.20gb+1g.20gb+1g.20gb+1g", "it has 9 memory slices"),
        ("1g.10gb+me+1g.10gb+me", "it has 2 of 1g.10gb+me, the GPU holds at most 1"),
        ("1g.99gb", "no MIG profile 1g.99gb"),
    ],
)
def test_a_layout_that_no_gpu_holds_is_refused_with_both_numbers(layout: str, told: str) -> None:
    with pytest.raises(UsageProblem, match=told.replace("+", r"\+").replace(".", r"\.")):
        read_seats(layout, H100)


AUTO = dataclasses.replace(POLICY, may_cut=True)


def plan_auto(jobs: Sequence[Job], known: dict[int, UsageProfile], policy: Policy = AUTO) -> Plan:
    return plan(jobs, known, ROOMY, policy, CALIBRATION)


HUNGRY = build_profile(0.5, 0.5, 1.0, gpu_memory_peak_mb=11_000)


def test_auto_cuts_the_gpu_where_mps_breaks_a_bound_that_instances_keep() -> None:
    jobs, known = build_call(("a", HUNGRY), ("b", HUNGRY))
    policy = dataclasses.replace(AUTO, slowdown_bound=1.75)
    assert len(plan_auto(jobs, known, dataclasses.replace(policy, may_cut=False)).packs) == 2
    (pack,) = plan_auto(jobs, known, policy).packs
    assert pack.mode is SharingMode.MIG
    assert len(pack.layout) == 2
    assert max(pack.predicted_slowdown or ()) * 1.05 <= 1.75
    (why,) = [text for text in pack.reasons if text.startswith("MIG, as MPS would break")]
    assert "--max-slowdown is 1.75" in why
    assert "no earlier pack has measured it" in why


def test_auto_cuts_the_gpu_for_what_was_measured_under_mps() -> None:
    shown = dataclasses.replace(HUNGRY, sm_activity=0.4, dram_activity=0.2, engine_activity=0.9)
    policy = dataclasses.replace(AUTO, slowdown_bound=1.9)
    jobs, known = build_call(("a", shown), ("b", shown))
    (pack,) = plan_auto(jobs, known, policy).packs
    assert pack.mode is SharingMode.MPS, "by the model they may share so"
    known = {index: dataclasses.replace(one, sensitivity=0.7) for index, one in known.items()}
    (pack,) = plan_auto(jobs, known, policy).packs
    assert pack.mode is SharingMode.MIG
    (why,) = [text for text in pack.reasons if text.startswith("MIG, as MPS would break")]
    assert "as measured in earlier packs; the model alone says 1." in why


def test_auto_leaves_to_mps_what_mps_holds() -> None:
    jobs, known = build_call(*[("small", SMALL)] * 4)
    (pack,) = plan_auto(jobs, known).packs
    assert pack.mode is SharingMode.MPS
    jobs, known = build_call(("a", SATURATING), ("b", SATURATING))
    packs = plan_auto(jobs, known).packs
    assert [pack.mode for pack in packs] == [SharingMode.EXCLUSIVE] * 2


def test_auto_puts_known_culprits_behind_walls_and_one_alone_stays_alone() -> None:
    jobs = [
        build_job(n, alone_because="its fault ended all clients of MPS", needs_wall=True)
        for n in (1, 2, 3)
    ]
    (pack,) = plan_auto(jobs, {}).packs
    assert pack.mode is SharingMode.MIG
    assert len(pack.members) == 3
    assert any("in a MIG instance it ends" in text for text in pack.reasons)
    (lone,) = plan_auto(jobs[:1], {}).packs
    assert lone.mode is SharingMode.EXCLUSIVE
    assert "its fault ended all clients" in lone.reasons[0]
    refused = plan_auto(jobs, {}, dataclasses.replace(AUTO, may_cut=False))
    assert len(refused.packs) == 3


def test_auto_does_not_cut_for_who_runs_alone_for_another_reason() -> None:
    jobs = [build_job(n, alone_because="it is only probed") for n in (1, 2)]
    assert len(plan_auto(jobs, {}).packs) == 2
