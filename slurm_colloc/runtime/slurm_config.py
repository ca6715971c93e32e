"""What a runner takes from Slurm's configuration; pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping


def read_kill_wait_s(config: Mapping[str, str]) -> float:
    """Slurm's KillWait; its default of 30 s where it cannot be read."""
    with contextlib.suppress(KeyError, ValueError, IndexError):
        return float(config["KillWait"].split()[0])
    return 30.0


def signals_tasks_alone(config: Mapping[str, str]) -> bool:
    """Signals other than KILL reach only the tasks of a step, not the processes below them.

    So does proctrack/cgroup (`_slurm_cgroup_is_pid_a_slurm_task`, 22.05 to 26.05); the other
    plugins signal every process of the step.
    """
    return config.get("ProctrackType", "") == "proctrack/cgroup"


def requeues_jobs(config: Mapping[str, str]) -> bool:
    """Slurm's JobRequeue; its default of 1 where it cannot be read."""
    return config.get("JobRequeue", "1").split()[:1] != ["0"]
