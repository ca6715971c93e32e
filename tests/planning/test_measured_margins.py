"""Packs that are measured as they run are planned with no margin on top of what is predicted.

Where the prediction is another GPU model's they are planned as far as it may be right.
"""

from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.plan import KnownBy, PackPlan, Policy
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from tests.planning.known_jobs import (
    CALIBRATION,
    H100,
    H200,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
)

# Of another GPU model and another job: the widest margin.
DOUBTFUL = dataclasses.replace(SMALL, known_by=KnownBy.FAMILY, gpu_model=H100)
MEASURED = dataclasses.replace(POLICY, measures=True)


def make_largest(policy: Policy, **changes: object) -> tuple[PackPlan, bool]:
    """The largest pack, and whether csub says that it is measured."""
    jobs, known = build_call(*[("a.sh", DOUBTFUL)] * 24)
    jobs = [dataclasses.replace(job, **changes) for job in jobs]  # type: ignore[arg-type]
    found = plan(jobs, known, ROOMY, policy, CALIBRATION)
    explained = build_explanation(found, jobs, known, ROOMY, policy, CALIBRATION)
    place = max(range(len(found.packs)), key=lambda place: found.packs[place].degree)
    return found.packs[place], explained.packs[place].is_measured


def find_largest(policy: Policy, **changes: object) -> int:
    return make_largest(policy, **changes)[0].degree


def test_more_run_at_once_where_it_is_measured() -> None:
    assert find_largest(MEASURED) > find_largest(POLICY) > 1


@pytest.mark.parametrize(
    "changes", [{"pause": False}, {"instrument": False}, {"host_memory_mb": 100}]
)
def test_what_cannot_be_measured_keeps_its_margin(changes: dict[str, object]) -> None:
    unmeasured = dataclasses.replace(MEASURED, measures=False)
    assert find_largest(MEASURED, **changes) == find_largest(unmeasured, **changes)


def test_steps_that_a_pattern_counts_are_measured_too() -> None:
    changes = {"instrument": False, "progress_regex": r"step (\d+)"}
    assert find_largest(MEASURED, **changes) == find_largest(MEASURED)


def test_the_plan_says_why_it_has_no_margin() -> None:
    held = "the bound is kept as far as the prediction may be right"
    for policy, said, unsaid in (
        (MEASURED, held, "the margin is doubled"),
        (POLICY, "the margin is doubled", "the bound is kept"),
    ):
        pack, is_measured = make_largest(policy)
        text = " ".join(pack.reasons)
        assert said in text
        assert unsaid not in text
        assert is_measured is policy.measures


def test_one_of_the_same_gpu_is_planned_by_what_is_predicted() -> None:
    subject = Subject(0, 1, None, 1000, 60.0, None, 1.5, margin=0.2)
    assert subject.bound_margin == pytest.approx(0.2)
    corrected = dataclasses.replace(subject, is_corrected=True)
    assert corrected.bound_margin == 0.0
    assert dataclasses.replace(corrected, is_borrowed=True).bound_margin == pytest.approx(-0.2)
    own = dataclasses.replace(DOUBTFUL, gpu_model=H200)
    jobs, known = build_call(*[("a.sh", own)] * 24)
    found = plan(jobs, known, ROOMY, MEASURED, CALIBRATION)
    assert any("kept without a margin" in text for text in found.packs[0].reasons)


def test_what_is_too_slow_even_so_says_by_how_much() -> None:
    heavy = dataclasses.replace(SATURATING, gpu_model=H100, gpu_memory_peak_mb=5000)
    jobs, known = build_call(*[("a.sh", heavy)] * 2)
    found = plan(jobs, known, ROOMY, MEASURED, CALIBRATION)
    explained = build_explanation(found, jobs, known, ROOMY, MEASURED, CALIBRATION)
    text = " ".join(str(pair) for pair in explained.pairs)
    assert "less the model's margin of" in text
