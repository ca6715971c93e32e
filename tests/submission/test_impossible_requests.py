"""What no node can ever hold is refused, with what was asked and what there is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.errors import NoPackPossible
from slurm_colloc.model.job import Job
from slurm_colloc.slurm.slurm_commands import NodeShape
from slurm_colloc.submission.plan.split_call import refuse_impossible

JOB = Job(1, "light", "light.sh", (), "/tmp", gpus=1)
SMALL = NodeShape("gpu", True, 16, 64000, (("a30", 2),), 3600, None)
LARGE = NodeShape("gpu", True, 32, 128000, (("a100", 4),), 3600, None)
WITHOUT = NodeShape("gpu", True, 128, 999999, (), 3600, None)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"cpus": 33}, "it asks for 33 CPUs, and a node of partition gpu has 32 at most"),
        ({"cpus": 17, "gpu_type": "a30"}, "it asks for 17 CPUs, and a node of partition gpu has"),
        ({"host_memory_mb": 128001}, "it asks for 128001 MB of host memory, and a node of"),
        ({"gpu_type": "h100"}, "it asks for a GPU of type h100, and no node of partition gpu"),
        ({"time_limit_s": 3601}, "it asks for --time=1:00:01, and partition gpu allows 1:00:00"),
        ({"time_limit_s": 3601, "alone_because": "two nodes", "cpus": 99}, "it asks for --time="),
    ],
)  # fmt: skip
def test_what_no_node_can_hold(asked: dict[str, Any], told: str) -> None:
    job = dataclasses.replace(JOB, **asked)
    with pytest.raises(NoPackPossible) as caught:
        refuse_impossible(job, (SMALL, LARGE, WITHOUT), max_time_s=3600)
    assert caught.value.message.startswith(f"light.sh: {told}")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "asked",
    [
        {"cpus": 32, "host_memory_mb": 128000, "time_limit_s": 3600},
        # It may get several nodes.
        {"cpus": 64, "gpus": 8},
        {"cpus": 16, "gpu_type": "a30"},
        # The CPUs of a node without GPUs count for a job that asks for none.
        {"cpus": 128, "gpus": 0},
        # How many nodes and tasks it has is Slurm's to judge.
        {"cpus": 999, "gpus": 64, "alone_because": "it asks for --nodes=16"},
    ],
)
def test_what_a_node_can_hold(asked: dict[str, Any]) -> None:
    refuse_impossible(dataclasses.replace(JOB, **asked), (SMALL, LARGE, WITHOUT), max_time_s=3600)


def test_what_is_not_known_refuses_nothing() -> None:
    large = dataclasses.replace(JOB, cpus=999, time_limit_s=10**9)
    refuse_impossible(large, ())
    refuse_impossible(dataclasses.replace(JOB, time_limit_s=10**9), (SMALL,))
