"""The steps that members' own scripts have started: signals to them, and their end."""

from __future__ import annotations

import contextlib
import os
import time

from slurm_colloc.errors import SlurmError
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.atomic_files import is_there

ASK_AGAIN_S = 10.0
"""How long Slurm is not asked for steps again after it has not answered."""


class InnerSteps:
    """Signals and ends them.

    Args:
        allocation: What Slurm gave.
        slurm: Slurm, or None where the pack runs without it: there are none, then.
    """

    def __init__(self, allocation: Allocation, slurm: SlurmAccess | None) -> None:
        self._allocation = allocation
        self._slurm = slurm
        self._failure: SlurmError | None = None
        self._ask_again_at = 0.0

    def signal(self, member: Member, number: int) -> None:
        """Signal the tasks of the steps that the member's own script has started, once each.

        The runner does it itself: a task may get the signal of `scancel JOB.STEP` twice (seen on
        22.05, while another job waits). Slurm is asked where the tasks cannot be found.

        Raises:
            SlurmError: Slurm does not tell the steps, or does not signal them; none was signalled.
            StateError: It cannot be told whether there are any.
        """
        if self._slurm is None:
            return
        if self._failure is not None and time.monotonic() < self._ask_again_at:
            raise self._failure
        try:
            steps = self._list(member, self._slurm)
            tasks = {step: find_tasks(self._name_process(step)) for step in steps}
            if unseen := [step for step, pids in tasks.items() if not pids]:
                self._slurm.signal_steps(unseen, number)
        except SlurmError as error:
            self._failure, self._ask_again_at = error, time.monotonic() + ASK_AGAIN_S
            raise
        self._failure = None
        for pid in (pid for pids in tasks.values() for pid in pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)  # noqa: TID251 - its own

    def _name_process(self, step: str) -> str:
        """What slurmstepd calls itself: it has the job's own id, also for an array's element."""
        job_id = self._allocation.environment.get("SLURM_JOB_ID", "")
        return f"slurmstepd: [{job_id}.{step.rpartition('.')[2]}]"

    def end(self, member: Member) -> None:
        """End the steps that the member's own script has left running."""
        if self._slurm is not None:
            with contextlib.suppress(SlurmError):
                if steps := self._list(member, self._slurm):
                    self._slurm.end_steps(steps)

    def _list(self, member: Member, slurm: SlurmAccess) -> list[str]:
        if not is_there(f"{member.prefix}.steps"):
            return []
        prefix = f"{member.name(self._allocation.shown_job_id)}:"
        named = slurm.list_steps(self._allocation.job_id)
        return [step for step, name in named if name.startswith(prefix)]


def find_tasks(manager: str) -> list[int]:
    """The processes that a step's slurmstepd has started on this node, by what it calls itself.

    Empty where it is not here, or the node hides the processes of others (proc(5), hidepid).
    """
    parents: dict[int, int] = {}
    managers = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name, in parentheses, may hold anything.
                text = file.read()
                parents[int(entry)] = int(text.rpartition(b")")[2].split()[1])
            if b"(slurmstepd)" in text:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if os.fsdecode(file.read()).rstrip("\0 ") == manager:
                        managers.add(int(entry))
        except (OSError, ValueError, IndexError):
            continue
    uid = os.geteuid()
    return [
        pid
        for pid, parent in parents.items()
        if parent in managers and pid not in managers and _is_of(pid, uid)
    ]


def _is_of(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False
