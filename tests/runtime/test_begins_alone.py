"""GPU memory of a member that begins alone, and what is left for those that come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.member import takes_at_once
from slurm_colloc.runtime.member_progress import read_program
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.room import PATIENCE_S
from slurm_colloc.store.member_states import GpuUse

from ..packs import build_member
from .test_several_gpus_of_a_set import LEFT, Set

USABLE_MB = 80_000


@pytest.fixture
def one() -> Set:
    return Set((LEFT,))


def start(stage: Set, member: Member) -> int | None:
    """Let it run; its limit."""
    limit_mb, gpus = stage.reserve(member)
    stage.start(member)
    member.gpu = GpuUse("mps", uuids=gpus, gpu_memory_limit_mb=limit_mb)
    return limit_mb


def test_the_first_has_no_limit_and_all_is_reserved_until_it_is_known_what_it_takes(
    one: Set,
) -> None:
    first = one.add(1)
    assert start(one, first) is None
    assert one.room.find_reserved_mb(first) == USABLE_MB
    assert one.describe(one.add(2)) is not None
    one.takes.mb[1] = 20_000
    assert one.room.find_reserved_mb(first) == 20_000
    # It may grow, and then counts with that.
    one.takes.mb[1] = 30_000
    free = one.look().compute_free()
    assert free is not None
    assert free.find_free_mb(1) == 50_000
    second = one.add(2)
    assert one.describe(second) is None
    assert start(one, second) == 50_000 // 4


def test_one_that_does_not_settle_is_not_waited_for_for_ever(one: Set) -> None:
    now = 100.0
    one.room.pack = replace(one.room.pack, clock=lambda: now)
    first = one.add(1)
    start(one, first)
    assert one.room.find_reserved_mb(first) == USABLE_MB
    now += PATIENCE_S
    assert one.room.find_reserved_mb(first) == USABLE_MB // 16


def test_one_whose_need_is_known_leaves_the_rest_to_others_at_once(one: Set) -> None:
    first = one.add(1)
    first.spec = replace(first.spec, plan=replace(first.spec.plan, gpu_memory_limit_mb=10_000))
    assert start(one, first) is None
    assert one.room.find_reserved_mb(first) == 10_000


def test_those_that_start_with_others_have_limits(one: Set) -> None:
    first, second = one.add(1), one.add(2)
    one.members.waiting.append(2)
    assert start(one, first) == USABLE_MB // 4
    one.members.waiting.remove(2)
    assert start(one, second) == (USABLE_MB - USABLE_MB // 4) // 4


def test_the_limit_of_its_user_holds_for_one_alone(one: Set) -> None:
    first = one.add(1)
    plan = replace(first.spec.plan, gpu_memory_limit_mb=4096)
    first.spec = replace(first.spec, job=replace(first.spec.job, gpu_memory_mb=4096), plan=plan)
    assert start(one, first) == 4096


def test_a_program_that_takes_what_it_gets_has_a_limit_from_the_start(
    one: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one.takes, "takes_at_once", lambda _: True)
    assert start(one, one.add(1)) == USABLE_MB // 4


def test_without_mps_nothing_is_different(one: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "enforces", False)
    first = one.add(1)
    one.reserve(first)
    assert first.reserved_mb == USABLE_MB


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("import jax.numpy as jnp\n", True),
        ("  from tensorflow import keras\n", True),
        ("import torch\n", False),
        ("# import jax\n", False),
        ("import jaxtyping\n", False),
        ('import os\nos.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"\nimport jax\n', False),
        ("import tensorflow as tf\ntf.config.experimental.set_memory_growth(gpu, True)\n", False),
    ],
)
def test_what_takes_memory_at_once_is_told_by_its_program(
    tmp_path: Path, text: str, is_so: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "script").write_text("#!/bin/bash\nexec python 'train.py' --lr $1\n")
    job = replace(build_member(1).spec.job, directory=str(tmp_path))
    assert takes_at_once(read_program(f"{tmp_path}/script", job).decode()) is is_so


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "script").write_text("python pipe.py; python /nowhere/x.py\n")
    job = replace(build_member(1).spec.job, directory=str(tmp_path))
    assert read_program(f"{tmp_path}/script", job) == (tmp_path / "script").read_bytes()


def test_a_script_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert read_program(f"{tmp_path}/script", build_member(1).spec.job) == b""
