"""What feeds trainings, cores that decode and the disk, is shared out over the GPUs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, UsageProfile
from slurm_colloc.model.usage_profile import HeldUp, Load, ProfileRecord
from slurm_colloc.planning.contention import predict_slowdowns
from slurm_colloc.planning.job_needs import build_load
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.report.plan_view import render_budget

from .coefficients import CALIBRATION as COEFFICIENTS
from .explained import explain, find_pair
from .known_jobs import CALIBRATION, POLICY, ROOMY, build_call, build_profile

PAIRS = dataclasses.replace(POLICY, degree=2, degree_is_asked=True, slowdown_bound=3.0)
GPU_BOUND = build_profile(0.5, 0.2, 0.8, power_w=350.0)
DECODES = build_profile(0.1, 0.05, 0.25, cpu_cores=2.0)
STEADY = build_profile(0.2, 0.08, 0.4)
READS = dataclasses.replace(STEADY, disk_share=0.6)
MODES = sorted(COEFFICIENTS.modes)


def list_pairs(kinds: Sequence[tuple[str, UsageProfile]], goal: Goal) -> list[list[str]]:
    """The names of who shares a GPU."""
    jobs, known = build_call(*kinds)
    made = plan(jobs, known, ROOMY, dataclasses.replace(PAIRS, goal=goal), CALIBRATION)
    return sorted(sorted(jobs[m.job_index].name for m in pack.members) for pack in made.packs)


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.ENERGY])
@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ffgg"))))
def test_two_that_decode_and_two_of_the_gpu_are_one_of_each_on_each_gpu(
    goal: Goal, order: tuple[str, ...]
) -> None:
    kinds = {"f": ("decodes", DECODES), "g": ("gpu", GPU_BOUND)}
    assert list_pairs([kinds[one] for one in order], goal) == [["decodes", "gpu"]] * 2


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.LATENCY, Goal.ENERGY])
@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ffgg"))))
def test_two_that_wait_for_the_disk_are_put_with_one_of_the_gpu_each(
    goal: Goal, order: tuple[str, ...]
) -> None:
    # But for the disk they are the same.
    kinds = {"f": ("reads", READS), "g": ("gpu", STEADY)}
    assert list_pairs([kinds[one] for one in order], goal) == [["gpu", "reads"]] * 2


def test_where_there_are_none_of_the_gpu_those_that_read_share_within_their_bounds() -> None:
    assert list_pairs([("reads", READS)] * 2, Goal.THROUGHPUT) == [["reads", "reads"]]


def test_why_two_are_not_together_names_the_disk() -> None:
    explanation = explain(*[("a", READS), ("b", READS), ("c", STEADY), ("d", STEADY)], policy=PAIRS)
    pair = find_pair(explanation, "a", "b")
    assert "both wait for the disk (alone for 60 % and 60 % of their time)" in pair.text
    assert all("disk" not in p.text for p in explanation.pairs if p != pair)
    strict = explain(*[("a", READS), ("b", READS)], policy=dataclasses.replace(POLICY,
        slowdown_bound=1.3))  # fmt: skip
    (told,) = find_pair(strict, "a", "b").broken
    assert told.constraint == "slowdown"
    assert told.text.endswith("both wait for the disk (alone for 60 % and 60 % of their time)")


def test_the_disk_has_a_bar_where_it_is_known_of_all() -> None:
    pack, other = explain(*[("a", READS), ("b", READS)], policy=PAIRS).packs[0], explain(
        *[("a", READS), ("b", STEADY)], policy=PAIRS
    ).packs[0]  # fmt: skip
    assert pack.disk_share is not None
    assert 0.6 < pack.disk_share <= 1.0
    assert any(line.startswith("disk ") for line in render_budget(pack, 80))
    assert other.disk_share is None
    assert not any(line.startswith("disk ") for line in render_budget(other, 80))


def predict(mode: str, disks: Sequence[float]) -> list[float]:
    loads = [Load(engine=0.1, sm=0.02, dram=0.01, disk=disk) for disk in disks]
    ones = [1.0] * len(loads)
    return [float(d) for d in predict_slowdowns(loads, ones, COEFFICIENTS.modes[mode])]


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8))
def test_no_more_is_read_than_the_disk_gives(mode: str, disks: list[float]) -> None:
    slowdowns = predict(mode, disks)
    without = predict(mode, [0.0] * len(disks))
    assert all(d > w for d, w in zip(slowdowns, without, strict=True))
    assert sum(d / s for d, s in zip(disks, slowdowns, strict=True)) <= 1.06


@pytest.mark.parametrize("mode", MODES)
def test_the_disk_is_nothing_to_one_that_reads_nothing_or_reads_alone(mode: str) -> None:
    assert predict(mode, [0.0, 0.9]) == predict(mode, [0.0, 0.0])
    three = predict(mode, [0.0, 0.9, 0.9])
    assert three[0] == predict(mode, [0.0, 0.0, 0.0])[0]
    assert three[1] == three[2] > predict(mode, [0.0, 0.0, 0.0])[1] + 0.5


@pytest.mark.parametrize(
    ("told", "load"), [(None, 0.0), (0.4, 0.4), (1.7, 1.0), (float("nan"), 0.0), (-1.0, 0.0)]
)
def test_what_a_probe_has_told_of_the_disk_comes_to_the_plan(
    told: float | None, load: float
) -> None:
    record = ProfileRecord("s", "f", "n", "g", (), 1, 0.0, sm_active=0.3, dram_active=0.1)
    profile = record.hold_up(HeldUp("s", "g", 0.0, 0.0, told)).for_planning()
    found = build_load(profile)
    assert found is not None
    assert found.disk == load
