"""Trainings that change for good are noticed once, passing changes never: random histories."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any, cast

import pytest

from slurm_colloc.metrics.phases import find_longest_phase
from slurm_colloc.metrics.rates import Interval
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.runtime.member_progress import StepCount
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.members_to_measure import RateDrift
from slurm_colloc.runtime.step_command import StartedProcess

from ..suites import leave_to_parts
from .degree_stage import Stage

READ_S = 0.5


@dataclasses.dataclass
class Training:
    """A training that evaluates after each epoch.

    Attributes:
        step_s: What a step takes alone.
        batch: Samples of a step; None where they are not counted.
        epoch_s: Seconds of steps between evaluations.
        evaluation_s: How long one lasts.
        weight: The part of the GPU that its evaluation takes, where one of its steps takes 1.
        after: What step and batch are multiplied by from `changes_at` on.
        until: From when on they are as before.
    """

    step_s: float
    batch: int | None
    epoch_s: float
    evaluation_s: float
    weight: float
    changes_at: float = float("inf")
    after: tuple[float, float] = (1.0, 1.0)
    until: float = float("inf")
    trained_s: float = 0.0
    evaluated_s: float = 0.0
    done: float = 0.0
    samples: float = 0.0
    last_s: float | None = None

    @property
    def evaluates(self) -> bool:
        return self.trained_s >= self.epoch_s


def play(trainings: list[Training], sharing: float, length_s: float, noise: random.Random) -> int:
    """How often a pack is measured anew.

    Args:
        trainings: Its members.
        sharing: How much of the GPU's time they need together at most: 1 where they take turns, 0
            where they do not feel each other.
        length_s: How long they run.
        noise: Of steps.
    """
    members = [_name(number) for number in range(len(trainings))]
    drift, measured, now = RateDrift(), 0, 0.0
    while now < length_s:
        now += READ_S
        load = sum(t.weight if t.evaluates else 1.0 for t in trainings)
        slowdown = 1.0 + sharing * max(0.0, load - 1.0)
        for training in trainings:
            _go_on(training, now, slowdown, noise)
        counts = {
            number: StepCount(
                now, int(t.done), 0.5, t.last_s, 1, None,
                samples=None if t.batch is None else int(t.samples),
            ) if t.last_s is not None else None
            for number, t in enumerate(trainings)
        }  # fmt: skip
        if drift.find(members, counts) is not None:
            measured += 1
            drift.forget()
    return measured


def _go_on(training: Training, now: float, slowdown: float, noise: random.Random) -> None:
    if training.evaluates:
        training.evaluated_s += READ_S
        if training.evaluated_s >= training.evaluation_s:
            training.trained_s = training.evaluated_s = 0.0
        return
    step, batch = training.after if training.changes_at <= now < training.until else (1.0, 1.0)
    before = int(training.done)
    pace = noise.gauss(1.0, 0.05)
    training.done += pace * READ_S / (training.step_s * step * slowdown)
    training.trained_s += READ_S
    if (steps := int(training.done) - before) > 0:
        training.last_s = now
        training.samples += steps * (training.batch or 0) * batch


def _name(number: int) -> Member:
    record = type("Record", (), {"starts": 1})
    return cast("Member", type("One", (), {"number": number, "record": record}))


def draw(chance: random.Random, members: int) -> list[Training]:
    return [
        Training(
            step_s=10 ** chance.uniform(-2, 0.3),
            batch=chance.choice([None, 32, 128]),
            epoch_s=chance.uniform(5, 200),
            evaluation_s=chance.choice([0.0, chance.uniform(0.5, 5), chance.uniform(5, 120)]),
            weight=chance.uniform(0.0, 1.5),
        )
        for _ in range(members)
    ]


@pytest.mark.parametrize("seed", leave_to_parts(range(140), but=range(20)))
def test_evaluations_cause_no_new_measurement(seed: int) -> None:
    chance = random.Random(seed)
    trainings = draw(chance, chance.randint(2, 5))
    sharing = chance.choice([0.0, 0.2, 0.5])
    assert play(trainings, sharing, 900.0, chance) == 0


@pytest.mark.parametrize("seed", leave_to_parts(range(140), but=range(20)))
def test_a_change_for_good_causes_one_new_measurement(seed: int) -> None:
    chance = random.Random(1000 + seed)
    trainings = draw(chance, chance.randint(2, 4))
    changing = trainings[0]
    changing.changes_at = chance.uniform(150, 400)
    kinds = [(2.0, 1.0), (0.5, 1.0), (1.8, 2.0), (4.0, 1.0)]
    if changing.batch is not None:
        # As many samples a second, or as many steps.
        kinds += [(2.0, 2.0), (1.0, 2.0), (0.5, 0.5)]
    changing.after = chance.choice(kinds)
    changing.epoch_s = max(changing.epoch_s, changing.evaluation_s)
    for neighbour in trainings[1:]:
        neighbour.evaluation_s = min(neighbour.evaluation_s, neighbour.epoch_s / 4)
    assert play(trainings, chance.choice([0.0, 0.2]), 1800.0, chance) == 1


@pytest.mark.parametrize("seed", leave_to_parts(range(60), but=range(10)))
def test_a_change_that_passes_causes_none(seed: int) -> None:
    chance = random.Random(2000 + seed)
    trainings = draw(chance, chance.randint(2, 4))
    trainings[0].step_s = min(trainings[0].step_s, 0.5)
    trainings[0].changes_at = chance.uniform(100, 400)
    trainings[0].after = chance.choice([(2.0, 1.0), (0.5, 1.0), (2.0, 2.0)])
    trainings[0].until = trainings[0].changes_at + chance.uniform(1, 19)
    assert play(trainings, 0.0, 800.0, chance) == 0


def test_the_pack_measures_anew_when_a_batch_doubles_and_samples_per_second_stay(
    tmp_path: Path, process: StartedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, large_from = Stage(tmp_path, process), 0.0
    read = stage.measured_degree.rates.read

    def count(member: Any) -> StepCount | None:
        found = read(member)
        if found is None or member.number != 2:
            return found
        before = large_from or found.steps
        larger = max(0.0, found.steps - before)
        return replace(found, samples=int(32 * min(found.steps, before) + 64 * larger))

    monkeypatch.setattr(stage.measured_degree.rates, "read", count)
    stage.start_all()
    stage.pass_time(200)
    assert len(stage.list_events("measures")) == 1
    large_from = stage.steps[2]
    stage.pass_time(390)
    assert [event["reason"] for event in stage.list_events("measures")][1:] == [
        "member 2 has changed"
    ]


@pytest.mark.parametrize(("first", "second"), [(10.0, 20.0), (20.0, 10.0)])
def test_a_rate_alone_is_that_of_the_longest_phase(first: float, second: float) -> None:
    rates = [first] * 60 + [second] * 200
    intervals = [
        Interval(float(at), at + 1.0, rate, rate * 32, None) for at, rate in enumerate(rates)
    ]
    phase = find_longest_phase(intervals)
    assert {interval.steps for interval in phase} == {second}
    assert len(phase) >= 190


def test_phases_are_told_apart_by_samples_of_a_step_alone() -> None:
    intervals = [
        Interval(float(at), at + 1.0, 10.0, 320.0 if at < 100 else 640.0, None) for at in range(150)
    ]
    phase = find_longest_phase(intervals)
    assert {interval.samples for interval in phase} == {320.0}


def test_a_run_that_does_not_change_is_one_phase() -> None:
    chance = random.Random(5)
    intervals = [
        Interval(float(at), at + 1.0, chance.uniform(8, 12), 320.0, None) for at in range(300)
    ]
    assert find_longest_phase(intervals) == intervals
