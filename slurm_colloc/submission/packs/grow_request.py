"""Letting a waiting Slurm job ask for more, in place: it keeps its id and its place in the queue.

Slurm lets a user raise CPUs, host memory and time of a pending job up to the limits of partition
and QoS, and refuses it once the job has started (seen on 22.05 to 26.05).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmRefused
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.quantities import format_time_limit, parse_host_memory_mb
from slurm_colloc.slurm.slurm_access import SlurmAccess


class Growth:
    """One change of what a pending job asks for, which can be taken back.

    Args:
        slurm: Slurm.
        job_id: The job.
        comments: Its present comment and its new one.
        inherited: Descriptors of the pack's lock: a change that is on its way when csub is killed
            must not overtake the next one.
    """

    def __init__(
        self,
        slurm: SlurmAccess,
        job_id: str,
        *,
        comments: tuple[str, str] = ("", ""),
        inherited: Sequence[int] = (),
    ) -> None:
        self._slurm = slurm
        self._job_id = job_id
        self._old_comment, self._new_comment = comments
        self._inherited = inherited
        self._before: Mapping[str, str] = {}

    def grow(self, request: PackRequest) -> str:
        """Let the job ask for this; why that cannot be, or an empty string.

        Args:
            request: What it is to ask for.
        """
        try:
            fields = self._slurm.read_job(self._job_id)
            if fields is None or fields.get("JobState") != "PENDING":
                return "it has just started"
            self._before = fields
            self._update({**build_changes(request), **self._comment(self._new_comment)})
        except SlurmRefused as error:
            # Slurm may have refused one value and taken the others (seen on 22.05 to 26.05).
            self.take_back()
            return f"Slurm does not let it grow ({error.message})"
        except SlurmError as error:
            return f"Slurm did not answer ({error.message})"
        return ""

    def take_back(self) -> None:
        """Let the job ask for what it asked for before, as far as Slurm allows it."""
        with contextlib.suppress(SlurmError):
            changes = build_changes_back(self._before)
            self._update({**changes, **self._comment(self._old_comment)})

    def _comment(self, comment: str) -> dict[str, str]:
        return {} if self._old_comment == self._new_comment else {"Comment": comment}

    def _update(self, changes: Mapping[str, str]) -> None:
        self._slurm.update_job(self._job_id, changes, inherited=self._inherited)


def build_changes(request: PackRequest) -> dict[str, str]:
    """What `scontrol update` is given so that a waiting pack asks for a request.

    CPUs need both fields: with NumCPUs alone a job of `--ntasks=1` is held for ever, with
    CPUsPerTask alone it gets one CPU (seen on 22.05 to 26.05).
    """
    changes = {
        "NumCPUs": str(request.cpus),
        "CPUsPerTask": str(request.cpus),
    }
    if request.host_memory_mb is not None:
        changes["MinMemoryNode"] = str(request.host_memory_mb)
    if request.is_unlimited or request.time_limit_s is not None:
        changes["TimeLimit"] = format_time_limit(request.time_limit_s)
    return changes


def build_changes_back(fields: Mapping[str, str]) -> dict[str, str]:
    """What `scontrol update` is given so that a job is what `scontrol show job` said it was."""
    changes: dict[str, str] = {}
    for shown, field in (
        ("NumCPUs", "NumCPUs"),
        ("CPUs/Task", "CPUsPerTask"),
        ("TimeLimit", "TimeLimit"),
    ):
        if shown in fields:
            value = fields[shown]
            # A range shows as 4-8, what was not asked for as N/A.
            value = value if shown == "TimeLimit" else value.partition("-")[0]
            if shown == "TimeLimit" or value.isdigit():
                changes[field] = value
    for field in ("MinMemoryNode", "MinMemoryCPU"):
        with contextlib.suppress(KeyError, ValueError):
            changes[field] = str(parse_host_memory_mb(fields[field]))
    return changes
