"""Jobs of a GPU that tells no activity share by what is known of them, and are measured."""

from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.plan import Capacity, KnownBy, PackPlan, Policy, UsageProfile
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.join_fit import plan_pending_join
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_call

A100 = "NVIDIA A100-SXM4-40GB"
CAPACITY = dataclasses.replace(ROOMY, gpu_memory_mb=40_960)
PROBING = dataclasses.replace(POLICY, measure_s=60)
SILENT = UsageProfile(
    gpu_memory_peak_mb=3000, host_memory_peak_mb=2000, cpu_cores=1.0, steps_per_s=12.5,
    run_s=600.0, known_by=KnownBy.EXACT, gpu_model=A100,
)  # fmt: skip
WORDS = "SM activity is not (no GPU before Hopper tells it)"


def make(
    *kinds: tuple[str, UsageProfile | None],
    policy: Policy = PROBING,
    capacity: Capacity = CAPACITY,
    calibration: Calibration | None = CALIBRATION,
) -> tuple[PackPlan, ...]:
    jobs, known = build_call(*kinds)
    return plan(jobs, known, capacity, policy, calibration).packs


def test_they_share_as_far_as_their_memory_goes_and_the_node_measures() -> None:
    (pack,) = make(*[("a.sh", SILENT)] * 4)
    assert (pack.degree, pack.known) == (4, False)
    assert pack.predicted_slowdown is None
    for member in pack.members:
        assert member.solo_steps_per_s == 12.5
        assert member.gpu_memory_limit_mb == 3600 + 1024
        assert member.predicted_slowdown is None
    (told,) = [reason for reason in pack.reasons if WORDS in reason]
    assert told == (
        "a.sh: GPU memory and rate alone are known, SM activity is not (no GPU before Hopper "
        "tells it): the pack is measured as it runs"
    )


def test_what_is_known_is_not_probed() -> None:
    (known,) = make(*[("a.sh", SILENT)] * 4)
    (unknown,) = make(*[("a.sh", None)] * 4)
    (mixed,) = make(("a.sh", SILENT), *[("b.sh", None)] * 3)
    asked = [pack.request.time_limit_s for pack in (known, unknown, mixed) if pack.request]
    assert asked[0] is not None
    assert asked == [asked[0], asked[0] + 60, asked[0] + 60]
    assert [member.solo_steps_per_s for member in mixed.members] == [12.5, None, None, None]


def test_too_much_memory_is_not_put_together() -> None:
    large = dataclasses.replace(SILENT, gpu_memory_peak_mb=20_000)
    packs = make(("big.sh", large), ("big.sh", large), ("a.sh", SILENT))
    assert [[m.job_index for m in pack.members] for pack in packs] == [[0, 2], [1]]


@pytest.mark.parametrize(
    "changes",
    [{"steps_per_s": None}, {"gpu_memory_peak_mb": None}, {"sm_activity": 0.0}],
    ids=["no rate", "no memory", "no use"],
)
def test_others_are_unknown_without_that_sentence(changes: dict[str, float | None]) -> None:
    profile = dataclasses.replace(
        dataclasses.replace(SILENT, dram_activity=0.1),
        **changes,  # type: ignore[arg-type]
    )
    (pack,) = make(*[("a.sh", profile)] * 2)
    assert not any(WORDS in reason for reason in pack.reasons)


@pytest.mark.parametrize("missing", ["sm_activity", "dram_activity"])
def test_either_activity_may_be_missing(missing: str) -> None:
    profile = dataclasses.replace(SMALL, **{missing: None})  # type: ignore[arg-type]
    (pack,) = make(*[("a.sh", profile)] * 2)
    assert not pack.known
    assert any(WORDS in reason for reason in pack.reasons)


def test_a_plan_without_a_calibration_heeds_none_of_it() -> None:
    (pack,) = make(*[("a.sh", SILENT)] * 2, calibration=None)
    assert [member.solo_steps_per_s for member in pack.members] == [None, None]
    assert not any(WORDS in reason for reason in pack.reasons)


def test_many_names_are_counted() -> None:
    policy = dataclasses.replace(PROBING, degree=12)
    kinds = [(f"j{n}.sh", SILENT) for n in range(9)]
    (pack,) = make(*kinds, policy=policy, capacity=ROOMY)
    (told,) = [reason for reason in pack.reasons if WORDS in reason]
    assert told.startswith("j0.sh, j1.sh, j2.sh, j3.sh, j4.sh, j5.sh, j6.sh, j7.sh and 1 more: ")


def test_one_that_joins_a_waiting_pack_is_judged_by_its_rate_too() -> None:
    jobs, known = build_call(("a.sh", SILENT), ("a.sh", SILENT))
    pack = plan_pending_join(Question(jobs, known, CAPACITY, PROBING, CALIBRATION))
    assert isinstance(pack, PackPlan)
    assert [member.solo_steps_per_s for member in pack.members] == [12.5, 12.5]


def test_the_explanation_has_their_length_and_no_slowdown() -> None:
    jobs, known = build_call(*[("a.sh", SILENT)] * 2)
    made = plan(jobs, known, CAPACITY, PROBING, CALIBRATION)
    (pack,) = build_explanation(made, jobs, known, CAPACITY, PROBING, CALIBRATION).packs
    for member in pack.members:
        assert (member.run_s, member.solo_steps_per_s) == (600.0, 12.5)
        assert (member.slowdown, member.sm_activity, member.dram_activity) == (None, None, None)
        assert member.gpu_memory_by == "nvml"
    assert (pack.sm_activity, pack.predicted_finish_s) == (None, None)
