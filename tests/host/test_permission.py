"""Which jobs may have what they ask for: only theirs is a driver touched for."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.hooks.hook_job import HookJob
from slurm_colloc.host.hooks.node_policy import Denied, Policy, check_permission, is_permitted
from slurm_colloc.model.comment_token import parse_token

ROOT = str(Path(__file__).resolve().parents[2])
JOB = HookJob("11", 1000, 1000, comment="my run [csub/1 mps]", partition="gpu", gpus=(0,))


def test_a_job_that_may_have_mps_is_permitted() -> None:
    assert is_permitted(Policy(), JOB)
    assert is_permitted(Policy(partitions=("gpu",), max_gpus=1), JOB)


@pytest.mark.parametrize(
    ("policy", "job"),
    [
        ({"enabled": False}, {}),
        ({}, {"comment": ""}),
        ({}, {"comment": "[csub/1 mps] "}),
        ({}, {"comment": "[csub/1 off]"}),
    ],
)
def test_where_nothing_is_asked_or_all_is_switched_off_nothing_is_permitted(
    policy: dict[str, Any], job: dict[str, Any]
) -> None:
    assert not is_permitted(Policy(**policy), dataclasses.replace(JOB, **job))


@pytest.mark.parametrize(
    ("policy", "job", "words"),
    [
        ({"partitions": ("cpu",)}, {}, "leaves out this partition"),
        ({"accounts": ("physics",)}, {}, "leaves out this account"),
        ({"modes": ()}, {}, "has no mode mps"),
        ({}, {"comment": "[csub/1 mig=3g+2g]"}, "has no mode mig"),
        ({"max_gpus": 1}, {"gpus": (0, 1)}, "takes 1 GPUs at most"),
        ({}, {"uid": 0}, "for ordinary users only"),
        ({}, {"uid": None}, "for ordinary users only"),
        ({}, {"gid": None}, "for ordinary users only"),
    ],
)
def test_what_is_denied_has_a_reason_and_is_not_permitted(
    policy: dict[str, Any], job: dict[str, Any], words: str
) -> None:
    allowed, asking = Policy(**policy), dataclasses.replace(JOB, **job)
    token = parse_token(asking.comment)
    assert token is not None
    with pytest.raises(Denied, match=words):
        check_permission(allowed, asking, token)
    assert not is_permitted(allowed, asking)


@pytest.mark.parametrize(
    ("loaded", "late"),
    [
        # Loaded before the fork that gets NVML ready; before NVML is told to; before the daemon
        # is started.
        ("host.nvml.nvml_fork", ("contextlib", "select", "signal", "dataclasses")),
        ("host.lifecycle", ("subprocess", "socket", "ctypes", "slurm_colloc.host.mps.mps_control")),
        (
            "host.hooks.prolog",
            ("slurm_colloc.host.mps.mps_events", "slurm_colloc.host.hooks.undo_checkpoint"),
        ),
    ],
)
def test_what_can_wait_is_loaded_later(loaded: str, late: tuple[str, ...]) -> None:
    program = f"import sys, slurm_colloc.{loaded}\nprint(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({ROOT!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(late) & set(ended.stdout.split())
