"""What both ways to Slurm must say of the scenario's jobs."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.slurm_commands import NodeShape, SlurmJob

from . import scenario


def check_jobs(listed: Mapping[str, SlurmJob], jobs: Mapping[str, str]) -> None:
    """Every kind of job is told as it is."""
    pending = listed[jobs["pending"]]
    assert pending.state is SlurmJobState.PENDING
    assert pending.reason in ("Resources", "Priority")
    assert (pending.nodes, pending.comment) == ("", "")
    assert (pending.time_used, pending.time_left) == ("0:00", "1-02:03:00")

    running = listed[jobs["running"]]
    assert running.state is SlurmJobState.RUNNING
    assert running.comment == scenario.COMMENT
    assert running.nodes
    assert running.reason == ""
    minutes, _, seconds = running.time_used.partition(":")
    used_s = int(minutes) * 60 + int(seconds)
    minutes, _, seconds = running.time_left.partition(":")
    assert used_s + int(minutes) * 60 + int(seconds) == 600

    assert listed[jobs["held"]].state is SlurmJobState.PENDING
    assert listed[jobs["held"]].reason.startswith("JobHeld")
    assert listed[jobs["completed"]].state is SlurmJobState.COMPLETED
    assert listed[jobs["completed"]].nodes
    assert listed[jobs["failed"]].state is SlurmJobState.FAILED
    assert listed[jobs["failed"]].reason == "NonZeroExitCode"
    assert listed[jobs["cancelled"]].state is SlurmJobState.CANCELLED
    assert listed[jobs["hidden"]].state is SlurmJobState.PENDING

    def find_waiting(kind: str) -> set[str]:
        return {
            name.partition("_")[2]
            for name, job in listed.items()
            if name.startswith(f"{jobs[kind]}_") and job.state is SlurmJobState.PENDING
        }

    assert find_waiting("array") == {"0", "1", "2", "4", "5"}
    assert listed[f"{jobs['array']}_4"].reason in ("", "BeginTime")
    assert find_waiting("many") == set(scenario.MANY_TASKS.split(","))
    assert find_waiting("every other") == {"0", "2", "4", "6", "8", "10", "12"}


def check_nodes(shapes: list[NodeShape], gpu_type: str | None) -> None:
    """The partitions that a user sees, without the hidden one unless she is root."""
    by_name = {shape.partition: shape for shape in shapes}
    assert {"gpu", "preempt"} <= set(by_name)
    gpu = by_name["gpu"]
    assert gpu.is_default
    assert not by_name["preempt"].is_default
    assert gpu.cpus >= 1
    assert gpu.host_memory_mb == 16000
    assert gpu.gpus == ((gpu_type, 2),)
    assert (gpu.time_limit_max_s, gpu.time_limit_default_s) == (7 * 86400, 3600)
