from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.measurement import (
    BY_ITSELF,
    ProbePatience,
    ProbeProgress,
    choose_patience,
    find_obstacle_to_counting,
    judge_window,
)

SHORT = ProbePatience(60.0, 200.0)
JOB = Job(1, "train", "train.sh", (), "/tmp", gpus=1)


@pytest.mark.parametrize(
    ("progress", "patience", "told"),
    [
        (ProbeProgress(45, 900, True, 24.1, 20.0), SHORT, "its rate is steady"),
        (ProbeProgress(44, 900, True, 24.0, 20.0), SHORT, ""),
        # Of a second each, two steps may be seen in one look.
        (ProbeProgress(60, 45, True, 25.0, 1.0), SHORT, "its rate is steady"),
        (ProbeProgress(60, 45, True, 24.9, 1.0), SHORT, ""),
        # A step at either end may lie partly outside.
        (ProbeProgress(120, 25, True, 29.9, 0.25), SHORT, ""),
        (ProbeProgress(120, 25, True, 30.0, 0.25), SHORT, "its rate is steady"),
        (ProbeProgress(45, 900, False, 90.0, 20.0), SHORT, ""),
        # Where no rate is steady, its mean will do, once it is exact and long enough for a profile.
        (
            ProbeProgress(45, 900, False, 30.0, 20.0, 19.0, 0.07),
            SHORT,
            "the mean of its rate is known to 7 %",
        ),
        (ProbeProgress(45, 900, False, 23.9, 20.0, 19.0, 0.07), SHORT, ""),
        (ProbeProgress(45, 900, False, 30.0, 20.0, 19.0, 0.09), SHORT, ""),
        (ProbeProgress(45, 900, False, 30.0, 20.0, 19.0, None), SHORT, ""),
        (ProbeProgress(59.9, None, False), SHORT, ""),
        (ProbeProgress(60, None, False), SHORT, "it has reported no step within 60 s"),
        (ProbeProgress(60, 0, False), SHORT, "it has reported no step within 60 s"),
        (ProbeProgress(199, 1, False), SHORT, ""),
        (ProbeProgress(200, 1, False), SHORT, "its rate was not steady within 200 s"),
        (
            ProbeProgress(200, 12, True, steps_per_s=0.1),
            SHORT,
            "it has not run for as long as a usage profile asks for within 200 s",
        ),
        (ProbeProgress(200, None, False), BY_ITSELF, ""),
        (ProbeProgress(360, None, False), BY_ITSELF, "it has reported no step within 360 s"),
        (ProbeProgress(559, 1, False), BY_ITSELF, ""),
        (ProbeProgress(560, 1, False), BY_ITSELF, "its rate was not steady within 560 s"),
    ],
)
def test_when_a_window_is_over(progress: ProbeProgress, patience: ProbePatience, told: str) -> None:
    assert judge_window(progress, patience) == told


@pytest.mark.parametrize(
    ("steady", "mean_error", "rate"),
    [(True, 0.03, 20.0), (True, None, 20.0), (False, 0.08, 19.0), (False, 0.081, None),
     (False, None, None)],
)  # fmt: skip
def test_the_rate_alone_is_the_newest_where_it_is_steady_else_the_mean(
    steady: bool, mean_error: float | None, rate: float | None
) -> None:
    assert ProbeProgress(45, 900, steady, 24.0, 20.0, 19.0, mean_error).rate_alone == rate


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"time_limit_s": 60}, ""),
        ({"pause": False}, ""),
    ],
)
def test_who_may_be_probed(changes: dict[str, Any], told: str) -> None:
    job = dataclasses.replace(JOB, **changes)
    assert find_obstacle_to_counting(job, instruments=True) == told


@pytest.mark.parametrize(("regex", "told"), [(None, "nothing counts its steps"), ("(\\d+)", "")])
def test_without_counting_there_is_nothing_to_wait_for(regex: str | None, told: str) -> None:
    job = dataclasses.replace(JOB, progress_regex=regex)
    assert find_obstacle_to_counting(job, instruments=False) == told
    silent = dataclasses.replace(job, instrument=False)
    assert find_obstacle_to_counting(silent, instruments=True) == told


@pytest.mark.parametrize(
    ("changes", "patience"),
    [
        ({"only_probe": True}, BY_ITSELF),
        ({"only_probe": True, "time_limit_s": 660}, BY_ITSELF),
        ({"only_probe": True, "time_limit_s": 300}, ProbePatience(200, 200)),
        ({"only_probe": True, "time_limit_s": 60}, ProbePatience(30, 30)),
    ],
)
def test_a_window_ends_before_the_time_limit(
    changes: dict[str, Any], patience: ProbePatience
) -> None:
    assert choose_patience(dataclasses.replace(JOB, **changes)) == patience
