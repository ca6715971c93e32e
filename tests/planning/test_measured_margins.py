"""Packs that are measured as they run are planned by what is predicted, with no margin on top."""

from __future__ import annotations

import dataclasses

import pytest

from slurm_colloc.model.plan import KnownBy, PackPlan, Policy, Rule
from slurm_colloc.planning.explain.plan_reasons import build_explanation
from slurm_colloc.planning.plan_packs import plan
from tests.planning.known_jobs import CALIBRATION, H100, POLICY, ROOMY, SMALL, build_call

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
    ("policy", "changes"),
    [
        (MEASURED, {"pause": False}),
        (MEASURED, {"instrument": False}),
        (dataclasses.replace(MEASURED, rule=Rule.CARMA), {}),
    ],
)
def test_what_cannot_be_measured_keeps_its_margin(
    policy: Policy, changes: dict[str, object]
) -> None:
    unmeasured = dataclasses.replace(policy, measures=False)
    assert find_largest(policy, **changes) == find_largest(unmeasured, **changes)


def test_steps_that_a_pattern_counts_are_measured_too() -> None:
    changes = {"instrument": False, "progress_regex": r"step (\d+)"}
    assert find_largest(MEASURED, **changes) == find_largest(MEASURED)


def test_the_plan_says_why_it_has_no_margin() -> None:
    for policy, said, unsaid in (
        (MEASURED, "the bound is held without a margin", "the margin is doubled"),
        (POLICY, "the margin is doubled", "the bound is held without a margin"),
    ):
        pack, is_measured = make_largest(policy)
        text = " ".join(pack.reasons)
        assert said in text
        assert unsaid not in text
        assert is_measured is policy.measures
