"""Processes that take most of what they may take at once: recognised by what the watcher sees."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.model.member import PART_AT_ONCE, describe_taken_at_once
from slurm_colloc.runtime.member_progress import (
    AT_ONCE_S,
    GpuMemoryUse,
    StepCount,
)
from slurm_colloc.runtime.step_command import StartedProcess

from .degree_stage import Stage

GIB = 1 << 30


def test_what_it_takes_in_its_first_moments_is_kept_and_no_more() -> None:
    use = GpuMemoryUse()
    assert use.find_at_once_mb(1, 1) is None
    use.note_nvml(1, 1, None, 100.0)
    assert use.find_at_once_mb(1, 1) is None
    use.note_nvml(1, 1, 400.0, 110.0)
    use.note_nvml(1, 1, 7500.0, 110.0 + AT_ONCE_S)
    assert use.find_at_once_mb(1, 1) == 7500.0
    use.note_nvml(1, 1, 9000.0, 111.0 + AT_ONCE_S)
    assert use.find_at_once_mb(1, 1) == 7500.0
    # Another start is another process.
    assert use.find_at_once_mb(1, 2) is None


def test_what_comes_with_steps_is_what_the_work_needs() -> None:
    use = GpuMemoryUse()
    use.note_count(1, 1, StepCount(50.0, 3, 49.0, 50.0, 1, None))
    use.note_nvml(1, 1, 7500.0, 110.0)
    assert use.find_at_once_mb(1, 1) is None


def test_pytorchs_allocator_takes_what_is_asked_for() -> None:
    use = GpuMemoryUse()
    use.note_nvml(1, 1, 7500.0, 110.0)
    use.note_count(1, 1, StepCount(50.0, 0, None, None, 1, None, 7 * GIB, 7 * GIB))
    assert use.find_at_once_mb(1, 1) is None


def test_most_of_what_it_may_take_is_told_with_what_to_do() -> None:
    text = describe_taken_at_once(7500.0, 10_000)
    assert text.startswith("it took 7500 of 10000 MB of GPU memory at once, before any step")
    assert "export XLA_PYTHON_CLIENT_PREALLOCATE=false" in text
    assert "export TF_FORCE_GPU_ALLOW_GROWTH=true" in text
    assert describe_taken_at_once(PART_AT_ONCE * 10_000, 10_000)
    assert not describe_taken_at_once(PART_AT_ONCE * 10_000 - 1, 10_000)
    # Two processes of 8 GB each, or one that does not reach MPS: no program took "75 % at once".
    assert not describe_taken_at_once(17_000.0, 10_000)
    assert not describe_taken_at_once(None, 10_000)
    assert not describe_taken_at_once(7500.0, None)


def test_a_running_member_is_told_of_once(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, members=2, known_mb=10_000)
    assert stage.start_all() == [1, 2]
    stage.loading = {1, 2}
    stage.memory_mb = {1: 7500.0, 2: 1500.0}
    for _ in range(3):
        stage.pass_time(2.5)
    told = [member.record.evidence for member in stage.members.list_members()]
    assert [len(evidence) for evidence in told] == [1, 0]
    assert told[0][0].startswith("it took 7500 of 10000 MB of GPU memory at once")
    assert stage.members.by_number[1].record.taken_at_once == told[0][0]
