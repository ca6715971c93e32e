"""Which jobs may have what they ask for, and what a hook loads before it needs it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.hooks.hook_job import HookJob
from slurm_colloc.host.hooks.node_policy import Denied, NodePolicy, check_permission
from slurm_colloc.model.comment_token import parse_token

ROOT = str(Path(__file__).resolve().parents[2])
JOB = HookJob("11", 1000, 1000, comment="my run [csub/1 mps]", partition="gpu", gpus=(0,))


@pytest.mark.parametrize("policy", [NodePolicy(), NodePolicy(partitions=("gpu",), max_gpus=1)])
def test_a_job_that_may_have_mps_is_permitted(policy: NodePolicy) -> None:
    token = parse_token(JOB.comment)
    assert token is not None
    check_permission(policy, JOB, token)


@pytest.mark.parametrize(
    ("policy", "job", "words"),
    [
        ({"partitions": ("cpu",)}, {}, "leaves out this partition"),
        ({"accounts": ("physics",)}, {}, "leaves out this account"),
        ({"modes": ()}, {}, "has no mode mps"),
        ({"modes": ()}, {"comment": "[csub/1 mig=3g+2g]"}, "does not let jobs divide GPUs by MIG"),
        ({"max_gpus": 1}, {"gpus": (0, 1)}, "takes 1 GPUs at most"),
        ({}, {"uid": 0}, "for ordinary users only"),
        ({}, {"uid": None}, "for ordinary users only"),
        ({}, {"gid": None}, "for ordinary users only"),
    ],
)
def test_what_is_denied_has_a_reason(
    policy: dict[str, Any], job: dict[str, Any], words: str
) -> None:
    allowed, asking = NodePolicy(**policy), dataclasses.replace(JOB, **job)
    token = parse_token(asking.comment)
    assert token is not None
    with pytest.raises(Denied, match=words):
        check_permission(allowed, asking, token)


@pytest.mark.parametrize(
    ("loaded", "late"),
    [
        # Loaded before the policy is read; before the daemon is started.
        ("host.lifecycle", ("subprocess", "socket", "ctypes", "slurm_colloc.host.mps.mps_control")),
        (
            "host.hooks.prolog",
            ("slurm_colloc.host.mps.mps_logs", "slurm_colloc.host.hooks.epilog"),
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
