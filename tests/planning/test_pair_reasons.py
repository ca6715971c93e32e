"""What keeps two jobs apart, limit by limit: relaxing what is named makes the pack legal."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Goal, Policy, SharingMode, UsageProfile
from slurm_colloc.planning.broken_limits import Weighing, format_above
from slurm_colloc.planning.hard_limits import Limits, Subject
from slurm_colloc.planning.job_needs import build_limits, build_subject
from slurm_colloc.planning.pack_pricing import Pricing
from slurm_colloc.planning.pair_reasons import PairReasons, count_pairs_apart, explain_pairs
from slurm_colloc.planning.plan_packs import TIME_RATIO, ask, find_keys, plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning import known_jobs
from tests.planning.explained import explain, find_pair
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    MODES,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
    build_job,
)

slow = settings(suppress_health_check=[HealthCheck.too_slow])
MIG = dataclasses.replace(POLICY, mode=SharingMode.MIG, modes=(SharingMode.MIG,))
_OF_THE_GPU = {
    "cpus": "cpus",
    "host_memory": "host_memory_mb",
    "gpu_memory": "gpu_memory_mb",
    "clients": "members",
    "pack_size": "members",
    "time": "finish_s",
}


def relax(
    subjects: list[Subject], limits: Limits, broken: tuple[tuple[str, float, float], ...]
) -> tuple[list[Subject], Limits]:
    """The jobs and the GPU with each named limit raised to what the pack comes to."""
    for constraint, have, limit in broken:
        if constraint == "slowdown":
            subjects = [
                dataclasses.replace(s, max_slowdown=have * 1.0001) if s.max_slowdown == limit else s
                for s in subjects
            ]
        elif constraint == "mig":
            rooms_mb = tuple(room and max(room, int(have)) for room in limits.instance_rooms_mb)
            limits = dataclasses.replace(limits, instance_rooms_mb=rooms_mb)
        else:
            name = _OF_THE_GPU[constraint]
            raised = have * 1.0001 if name == "finish_s" else int(have)
            limits = dataclasses.replace(limits, **{name: max(raised, getattr(limits, name))})
    return subjects, limits


@slow
@given(
    call=st.lists(
        st.tuples(known_jobs.SOUND_PROFILES, st.none() | st.sampled_from([1.0, 1.1, 1.3, 2.0])),
        min_size=2,
        max_size=6,
    ),
    capacity=known_jobs.CAPACITIES,
    goal=st.sampled_from(Goal),
    pack_size=st.none() | st.integers(2, 6),
    modes=st.sampled_from([MODES, (SharingMode.MIG,), (SharingMode.MPS, SharingMode.MIG)]),
)
def test_raising_every_limit_that_is_named_makes_the_pair_legal(
    call: list[tuple[UsageProfile, float | None]],
    capacity: Capacity,
    goal: Goal,
    pack_size: int | None,
    modes: tuple[SharingMode, ...],
) -> None:
    jobs = [build_job(n, max_slowdown=bound) for n, (_, bound) in enumerate(call, start=1)]
    profiles = {index: profile for index, (profile, _) in enumerate(call)}
    policy = Policy(goal=goal, pack_size=pack_size, mode=modes[0], modes=modes)
    made = plan(jobs, profiles, capacity, policy, CALIBRATION)
    explanation = build_explanation(made, jobs, profiles, capacity, policy, CALIBRATION)
    assert explanation.pairs_left_out == 0
    assert sum(pair.pairs for pair in explanation.pairs) == count_pairs_apart(made)
    question = ask(jobs, profiles, capacity, policy, CALIBRATION)
    subjects = [build_subject(question, index) for index in range(len(jobs))]
    limits = build_limits(question, subjects)
    for pair in explanation.pairs:
        told = {b.constraint for b in pair.broken}
        if told <= {"cost", "unknown"}:
            continue
        numbers = [(b.constraint, b.have, b.limit) for b in pair.broken]
        assert all(have is not None and limit is not None for _, have, limit in numbers), pair.text
        if pair.pack_indices and any(pack.degree < len(pack.members) for pack in made.packs):
            # Who waits in a pack takes nobody's place.
            assert told == {"pack_size"}
            continue
        if any(subjects[i].load is None for i in (pair.first_index, *pair.pack_indices)):
            # Nothing is predicted of unknown jobs; their users' words count.
            assert told <= {*_OF_THE_GPU, "mig", "order"}
            continue
        new = pair.second_index
        if new in pair.pack_indices:
            new = pair.first_index
        members = [*(pair.pack_indices or (pair.first_index,)), new]
        weighing = Weighing(
            [subjects[i] for i in members], limits, CALIBRATION, goal=goal, modes=modes
        )
        everybody = range(len(members))
        assert weighing.pricing.price(everybody) is None
        sure = tuple(
            (c, h, limit) for c, h, limit in numbers if h is not None and limit is not None
        )
        if "cost" in told:
            continue
        relaxed, roomier = relax([subjects[i] for i in members], limits, sure)
        pricing = Pricing(relaxed, roomier, CALIBRATION, goal=goal, modes=modes)
        assert pricing.price(everybody) is not None, pair.text


@slow
@given(
    limits_s=st.lists(
        st.none() | st.sampled_from([60, 600, 900, 2399, 2400, 7200, 40_000]),
        min_size=2,
        max_size=6,
    ),
    most_s=st.none() | st.sampled_from([3600, 86_400]),
)
def test_asking_for_as_much_as_is_named_lets_a_job_be_planned_with_the_other(
    limits_s: list[int | None], most_s: int | None
) -> None:
    jobs = [_build_asking(number, limit_s) for number, limit_s in enumerate(limits_s, start=1)]
    capacity = dataclasses.replace(ROOMY, time_limit_max_s=most_s)
    profiles = dict.fromkeys(range(len(jobs)), SMALL)
    made = plan(jobs, profiles, capacity, POLICY, CALIBRATION)
    explanation = build_explanation(made, jobs, profiles, capacity, POLICY, CALIBRATION)
    keys = find_keys(ask(jobs, profiles, capacity, POLICY, CALIBRATION))
    for pair in explanation.pairs:
        i, j = pair.first_index, pair.second_index
        (broken,) = pair.broken
        assert (broken.constraint in {"duration", "time"}) == (keys[i] != keys[j])
        if broken.constraint != "duration":
            continue
        short, long = sorted((i, j), key=lambda index: keys[index].longest_s or 10**9)
        assert broken.have == limits_s[short]
        if broken.limit is None:
            assert limits_s[long] is None
            jobs[short] = _build_asking(short + 1, None)
        else:
            assert broken.have is not None
            assert broken.have < broken.limit
            jobs[short] = _build_asking(short + 1, int(broken.limit))
        raised = find_keys(ask(jobs, profiles, capacity, POLICY, CALIBRATION))
        assert raised[short] == raised[long]
        jobs[short] = _build_asking(short + 1, limits_s[short])


@pytest.mark.long
@slow
@given(
    kinds=st.lists(
        st.tuples(
            st.sampled_from([SMALL, LARGE, SATURATING]) | known_jobs.SOUND_PROFILES,
            st.integers(1, 8),
        ),
        min_size=1,
        max_size=3,
    ),
    most=st.sampled_from([2, 3, 48]),
    pack_size=st.none() | st.integers(2, 6),
)
def test_what_is_told_of_a_pair_holds_for_all_that_it_stands_for(
    kinds: list[tuple[UsageProfile, int]], most: int, pack_size: int | None
) -> None:
    profiles = [profile for profile, count in kinds for _ in range(count)]
    # Each with a name of its own: pairs of the same names with the same reason are told once.
    jobs, known = build_call(*((f"job{n}", profile) for n, profile in enumerate(profiles)))
    policy = dataclasses.replace(POLICY, degree_max=most, pack_size=pack_size)
    made = plan(jobs, known, ROOMY, policy, CALIBRATION)
    question = ask(jobs, known, ROOMY, policy, CALIBRATION)
    subjects = [build_subject(question, index) for index in range(len(jobs))]
    reasons = PairReasons(made, question, subjects, [job.name for job in jobs])

    def look(i: int, j: int) -> frozenset[object]:
        """What is in the way, whichever of the two joins the other's pack."""
        pairs = (reasons.explain(i, j, 1), reasons.explain(j, i, 1))
        return frozenset(
            frozenset((b.constraint, b.have, b.limit) for b in pair.broken) for pair in pairs
        )

    told: Counter[frozenset[object]] = Counter()
    pairs, left_out = explain_pairs(made, question)
    assert left_out == 0
    for pair in pairs:
        told[look(pair.first_index, pair.second_index)] += pair.pairs
    apart = [
        (i, j)
        for i, j in itertools.combinations(range(len(jobs)), 2)
        if reasons.places[i] != reasons.places[j]
    ]
    assert told == Counter(look(i, j) for i, j in apart)


def _build_asking(number: int, limit_s: int | None) -> Job:
    shape = (("time", "0"),) if limit_s is None else ()
    return build_job(number, time_limit_s=limit_s, shape=shape)


def test_time_limits_that_are_too_different_are_told_with_both_numbers() -> None:
    jobs, known = build_call(("short", SMALL), ("long", SMALL), ("longest", SMALL))
    for index, asked_s in enumerate((600, 3600, 7200)):
        jobs[index] = dataclasses.replace(jobs[index], time_limit_s=asked_s)
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    explanation = build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)
    assert {(p.first, p.second) for p in explanation.pairs} == {
        ("short", "long"),
        ("short", "longest"),
    }
    pair = find_pair(explanation, "short", "long")
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [
        ("duration", 600, 7200 / TIME_RATIO)
    ]
    assert "short asks for 600 s, the jobs that share there for 1800 to 7200 s" in pair.text


@pytest.mark.parametrize("profile", [SMALL, None])
def test_the_asked_size_of_packs_is_told_as_such(profile: UsageProfile | None) -> None:
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True, pack_size=3)
    pair = explain(*[("job", profile)] * 5, policy=policy).pairs[0]
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("pack_size", 4, 3)]
    assert pair.text == "4 would be in one pack, --pack-size is 3"


def test_no_more_share_than_one_mps_server_has_clients() -> None:
    policy = dataclasses.replace(POLICY, degree=60, degree_is_asked=True)
    capacity = dataclasses.replace(ROOMY, cpus_per_gpu=None, host_memory_mb_per_gpu=None)
    (pair,) = explain(*[("new", None)] * 50, policy=policy, capacity=capacity).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("clients", 49, 48)]
    assert pair.text == "49 would run at once, 48 may: more cannot share by mps"


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"cpus": 60}, ("cpus", 60, 48)),
        ({"host_memory_mb": 500_000}, ("host_memory", 500_000, 400_000)),
        ({"gpu_memory_mb": 140_000}, ("gpu_memory", 140_000, 136_582)),
    ],
)
def test_who_needs_more_than_a_gpu_has_is_told_also_where_members_wait(
    changes: dict[str, int], numbers: tuple[str, int, int]
) -> None:
    policy = dataclasses.replace(POLICY, degree=2, pack_size=6, degree_is_asked=True)
    jobs, known = build_call(("a", None), ("large", None))
    jobs[1] = dataclasses.replace(jobs[1], **changes)  # type: ignore[arg-type]
    made = plan(jobs, known, ROOMY, policy, CALIBRATION)
    (pair,) = build_explanation(made, jobs, known, ROOMY, policy, CALIBRATION).pairs
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [numbers]
    assert pair.text.startswith(f"large needs {numbers[1]} ")
    assert "assumed" not in pair.text


def test_small_packs_for_the_queue_s_sake_are_told_as_such() -> None:
    policy = dataclasses.replace(POLICY, degree_max=2, is_small_for_queue=True)
    pair = explain(*[("job", SMALL)] * 4, policy=policy).pairs[0]
    assert [(b.constraint, b.have, b.limit) for b in pair.broken] == [("queue", 3, 2)]
    assert pair.text == "3 would run at once, 2 may, as smaller packs wait less in the queue"


def test_small_mig_instances_are_told_with_both_numbers_beside_other_limits() -> None:
    huge = dataclasses.replace(SMALL, gpu_memory_peak_mb=55_000)
    assert not explain(("a", SMALL), ("b", SMALL), ("huge", huge), policy=MIG).pairs
    large = dataclasses.replace(SMALL, gpu_memory_peak_mb=35_000)
    pair = explain(("a", large), ("b", large), ("huge", large), policy=MIG).pairs[0]
    found = [(b.constraint, b.have, b.limit) for b in pair.broken]
    # A 2g.35gb of the H200 has 33280 MB, of which needs may fill 95 %.
    assert found == [("mig", 43_024, int(33_280 * 0.95))]
    assert "a needs 43024 MB of GPU memory, each of 3 MIG instances has" in pair.text
    huge = dataclasses.replace(SMALL, gpu_memory_peak_mb=70_000)
    narrow = dataclasses.replace(ROOMY, cpus_per_gpu=1)
    (pair,) = explain(("a", SMALL), ("huge", huge), policy=MIG, capacity=narrow).pairs
    assert {b.constraint for b in pair.broken} == {"cpus", "mig"}


def test_each_bound_that_is_passed_is_named() -> None:
    jobs, known = build_call(("a", SATURATING), ("b", SATURATING), ("c", SATURATING))
    for index, bound in enumerate((1.2, 1.3, 1.3)):
        jobs[index] = dataclasses.replace(jobs[index], max_slowdown=bound)
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    explanation = build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)
    slow = [b for b in find_pair(explanation, "a", "b").broken if b.constraint == "slowdown"]
    assert [b.limit for b in slow] == [1.2, 1.3]
    assert [b.text.split(" ", 1)[0] for b in slow] == ["a", "b"]
    same = [b for b in find_pair(explanation, "b", "c").broken if b.constraint == "slowdown"]
    assert [b.limit for b in same] == [1.3]
    assert "(2 of 2 members would pass it)" in same[0].text


@pytest.mark.parametrize("goal", list(Goal))
def test_what_saves_too_little_is_told_with_both_numbers(goal: Goal) -> None:
    policy = dataclasses.replace(POLICY, goal=goal, slowdown_bound=100.0)
    pairs = explain(*[("big", LARGE)] * 3, ("s", SMALL), ("fill", SATURATING), policy=policy).pairs
    told = [b for pair in pairs for b in pair.broken if b.constraint == "cost"]
    assert told
    for broken in told:
        assert broken.have is not None
        assert broken.limit is not None
        assert broken.have >= broken.limit


def test_the_margin_is_told_as_that_of_the_model() -> None:
    heavy = known_jobs.build_profile(0.85, 0.45, 0.98)
    (pair,) = explain(("a", heavy), ("b", heavy)).pairs
    slow, cost = pair.broken
    assert slow.have is not None
    assert f"({slow.have:.2f} with the model's margin of 5 %), --max-slowdown is 1.5" in slow.text
    assert cost.have is not None
    assert 1140 <= cost.have < 1200
    assert cost.limit == pytest.approx(1140)
    assert cost.text == (
        f"together they take {cost.have:.0f} s of GPU time, apart 1200 s; "
        "with the model's margin of 5 % it has to be less than 1140 s"
    )


@pytest.mark.parametrize(
    ("value", "limit", "digits", "text"),
    [(1.58, 1.5, 2, "1.58"), (1.504, 1.5, 2, "1.504"), (1.50002, 1.5, 2, "1.50002"),
     (3600.4, 3600.0, 0, "3600.4"), (3601.2, 3600.0, 0, "3601")],
)  # fmt: skip
def test_what_passes_a_limit_by_little_is_told_with_more_digits(
    value: float, limit: float, digits: int, text: str
) -> None:
    assert format_above(value, limit, digits) == text


def test_host_memory_that_nobody_stated_is_told_as_assumed() -> None:
    jobs, known = build_call(*[("job", None)] * 5)
    stated, unstated = (
        [dataclasses.replace(job, host_memory_mb=memory_mb) for job in jobs]
        for memory_mb in (100_000, None)
    )
    found = []
    for call in (stated, unstated):
        made = plan(call, known, ROOMY, POLICY, CALIBRATION)
        pair = build_explanation(made, call, known, ROOMY, POLICY, CALIBRATION).pairs[0]
        found.append(next(b for b in pair.broken if b.constraint == "host_memory"))
    assert (found[0].have, found[0].limit) == (found[1].have, found[1].limit) == (500_000, 400_000)
    assert found[0].text == "5 at once need 500000 MB of host memory, the GPU's share is 400000 MB"
    assert found[1].text == (
        f"{found[0].text} (100000 MB are assumed of each without --mem, 5 of 5: "
        "that share divided by the degree)"
    )
