"""Thirty scripts as people write them give the same by sbatch and by csub, on one GPU or two."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ..bed import CsubUser
from . import script_runs
from .catalogue import CASES, Case
from .comparison import Run, find_differences, find_unused, mask_run

pytestmark = [pytest.mark.slurm, pytest.mark.torch]


@dataclass
class Results:
    """What every script left behind."""

    expected: dict[str, Run]
    actual: dict[str, list[Run]]


@pytest.fixture(
    scope="module",
    params=[(), pytest.param(("--gpus-per-pack=2",), marks=pytest.mark.long)],
    ids=["one GPU", "two GPUs"],
)
def results(request: pytest.FixtureRequest, scripts_user: CsubUser) -> Results:
    """All scripts, submitted at once, each as a pack of one GPU, or of two."""
    submitted = [
        script_runs.submit(case, scripts_user, request.param)
        for case in CASES
        if not script_runs.find_missing(case)
    ]
    script_runs.wait_for_all(scripts_user, submitted)
    return Results(
        {entry.case.name: script_runs.read_expected(entry, scripts_user) for entry in submitted},
        {entry.case.name: script_runs.read_actual(entry, scripts_user) for entry in submitted},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_gives_the_same_by_sbatch_and_by_csub_four_at_a_time(
    results: Results, case: Case
) -> None:
    if missing := script_runs.find_missing(case):
        pytest.skip(f"{case.name} needs {missing}")
    expected, actual = results.expected[case.name], results.actual[case.name]
    assert (expected.exit_code, expected.signal) == (case.exit_code, case.signal), (
        script_runs.describe(expected)
    )
    output = b"\n".join(entry.content for entry in expected.tree.values())
    assert case.says.encode() in output, script_runs.describe(expected)
    assert len(actual) == (1 if case.is_array else script_runs.MEMBERS)
    masked = mask_run(expected, case.allowances)
    for number, run in enumerate(actual, start=1):
        differences = find_differences(masked, mask_run(run, case.allowances))
        assert not differences, f"member {number}:\n" + "\n".join(differences)
    assert find_unused(case.allowances, [expected, *actual]) == []
