"""Slurm over pyslurm where that answers alike, and over its commands for all else.

pyslurm calls the controller directly. What sbatch, scontrol and scancel do besides (option parsing,
cli_filter and SPANK plugins, TERM before KILL) it does not, so everything that changes something
stays with the commands. So do questions that are asked once in a call, where the import costs more
than a process. What is left is the question that waiting calls ask again and again: list_jobs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.run_command import build_slurm_error
from slurm_colloc.slurm.slurm_commands import SlurmCommands, SlurmJob, compute_element_states

FOREIGN_JOBS_MAX = 400
"""pyslurm can only ask for the jobs of all users, and each costs about 14 microseconds. With more
than these of others squeue is quicker, and easier on the controller, which chooses for it."""

JOB_FIELDS = ("id", "array_id", "array_task_id", "array_tasks_waiting", "user_id", "state",
              "state_reason", "run_time", "time_limit", "allocated_nodes", "comment")  # fmt: skip
"""What is read of a pyslurm.Job; the probe looks whether this pyslurm has it."""

_YEAR_S = 365 * 86400

_environment = threading.Lock()


class PyslurmAccess(SlurmCommands):
    """Slurm over pyslurm and its commands.

    Args:
        library: The module `pyslurm`. Import it only after slurm.probe_pyslurm has found that it
            can be:
            libslurm ends the whole process where there is no configuration.
        environment: Environment of the commands; None for the user's, filtered.
        uid: Whose jobs are listed; None for the caller's.
    """

    def __init__(
        self,
        library: Any,
        environment: Mapping[str, str] | None = None,
        *,
        uid: int | None = None,
    ) -> None:
        super().__init__(environment, uid=uid)
        self._library = library
        self._too_many = False

    def list_jobs(self) -> dict[str, SlurmJob]:
        """All jobs of the user that Slurm still shows, by id or element id; one question.

        What pyslurm calls an error is asked again over squeue, which says it in Slurm's words;
        only a controller that does not answer is not asked twice.
        """
        if self._too_many:
            return super().list_jobs()
        try:
            with _whole_task_lists():
                loaded = list(self._library.Jobs.load().values())
        except self._library.PyslurmError as error:
            problem = build_slurm_error(["pyslurm"], 1, str(error))
            if isinstance(problem, SlurmUnreachable):
                raise problem from error
            return super().list_jobs()
        user = os.getuid() if self._uid is None else self._uid
        own = [job for job in loaded if job.user_id == user]
        self._too_many = len(loaded) - len(own) > FOREIGN_JOBS_MAX
        return compute_element_states([build_job(job) for job in own])


@contextlib.contextmanager
def _whole_task_lists() -> Iterator[None]:
    # libslurm cuts the waiting tasks of an array after 64 characters unless told otherwise.
    name = "SLURM_BITSTR_LEN"
    with _environment:
        before = os.environ.get(name)
        os.environ[name] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def build_job(job: Any) -> SlurmJob:
    """A pyslurm.Job as squeue would show it; waiting tasks of an array stay folded."""
    used_s = job.run_time or 0
    reason = job.state_reason or ""
    return SlurmJob(
        job_id=_render_id(job),
        state=SlurmJobState.parse(job.state or ""),
        time_used=render_duration(used_s),
        time_left=_render_time_left(job.time_limit, used_s),
        nodes=job.allocated_nodes or "",
        reason="" if reason == "None" else reason,
        comment=job.comment or "",
    )


def _render_id(job: Any) -> str:
    if not job.array_id:
        return str(job.id)
    if job.array_task_id is not None:
        return f"{job.array_id}_{job.array_task_id}"
    if job.array_tasks_waiting:
        return f"{job.array_id}_[{job.array_tasks_waiting}]"
    # pyslurm 25.11 takes task 0 for no task. The only record that has none is what is left of an
    # array whose tasks were cancelled one by one before they started.
    never_started = (job.state or "").startswith("CANCELLED") and not job.allocated_nodes
    if job.id == job.array_id and never_started:
        return str(job.id)
    return f"{job.array_id}_0"


def _render_time_left(limit_min: int | str | None, used_s: int) -> str:
    if limit_min is None:
        return "NOT_SET"
    return limit_min if isinstance(limit_min, str) else render_duration(limit_min * 60 - used_s)


def render_duration(seconds: int) -> str:
    """Seconds as squeue prints them (_print_secs in its print.c): `1:02`, `1-02:03:04`."""
    if not 0 <= seconds <= _YEAR_S:
        return "INVALID"
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
