"""Whose process it is: by what stands above it, or by the environment it was started with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import find_ancestor, read_named_start, read_parent

RUN = "/state/pack/members/0003/run.1.2"
GONE = 999_999_999


@pytest.fixture
def family() -> Iterator[tuple[int, int, int]]:
    """A process, its child, and one that names a member in its environment."""
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "names = {'SLURM_COLLOC_PACK': '/state/pack', 'SLURM_COLLOC_START': sys.argv[1]}\n"
        "environment = {**os.environ, **names}\n"
        "step = subprocess.Popen(['sleep', '60'], env=environment, start_new_session=True)\n"
        "print(child.pid, step.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.kill(); step.kill(); child.wait(); step.wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", code, RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    child, step = map(int, process.stdout.readline().split())
    deadline = time.monotonic() + 60
    # Its environment is that of its parent until it has called exec.
    while os.fsencode(RUN) not in Path(f"/proc/{step}/environ").read_bytes():
        assert time.monotonic() < deadline
    yield process.pid, child, step
    process.communicate(timeout=60)


def test_a_process_belongs_to_the_nearest_above_it(family: tuple[int, int, int]) -> None:
    wrapper, child, _ = family
    assert read_parent(child) == wrapper
    assert read_parent(GONE) is None
    assert find_ancestor(child, {wrapper: 2, os.getpid(): 9}) == 2
    assert find_ancestor(wrapper, {wrapper: 2}) == 2
    assert find_ancestor(child, {GONE: 3}) is None
    assert find_ancestor(os.getpid(), {wrapper: 2}) is None
    assert find_ancestor(GONE, {wrapper: 2}) is None
    # What is known to have no owner is not climbed over.
    assert find_ancestor(child, {os.getpid(): 9}) == 9
    assert find_ancestor(child, {os.getpid(): 9}, {wrapper}) is None


def test_the_end_of_a_chain_is_found_where_pids_go_round() -> None:
    assert find_ancestor(10, {GONE: 1}, (), {10: 11, 11: 10}.get) is None


def test_a_step_of_its_own_names_its_member_and_start(family: tuple[int, int, int]) -> None:
    _, child, step = family
    assert read_named_start(step, b"/state/pack") == (3, 2)
    assert read_named_start(step, b"/state/other") is None
    assert read_named_start(child, b"/state/pack") is None
    assert read_named_start(GONE, b"/state/pack") is None
