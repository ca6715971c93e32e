"""A node of several whose step has ended: its members start again in the GPU sets of the others.

Slurm takes a node that fails out of a job with --no-kill, and ends the steps there (sbatch(1)). The
guard of the first node then sees the end of the srun that stood for it. A runner that is cut off
and still lives is fenced first: it finds that it counts as gone, and ends its members.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.model.end_causes import EndCause
from slurm_colloc.model.member import MemberState, is_guest
from slurm_colloc.runtime.guarded_steps import insist
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.pack.requeue_after_kill import JobStanding, judge_standing
from slurm_colloc.runtime.queue.allocation import Allocation, read_allocation, requeues_jobs
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.slurm.slurm_commands import SlurmCommands
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.gpu_division import read_division
from slurm_colloc.store.pack.member_states import (
    StateRecord,
    read_attempt,
    read_state,
    write_state,
)
from slurm_colloc.store.pack.pack_directory import read_pack, read_spec
from slurm_colloc.store.pack.runner_kills import RunnerKill, read_kill, write_kill
from slurm_colloc.store.pack.written_ends import find_written_end
from slurm_colloc.store.pack_reading import list_node_packs

FENCE_S = 3.0
"""How long a runner that is cut off may take to end its members; it looks once a second."""


def leave_node(path: str) -> bool:
    """Free what has not ended on a node; see `LeftNode.settle`."""
    allocation = read_allocation(read_given_environment())
    return LeftNode(Path(path), allocation, SlurmCommands()).settle()


class LeftNode:
    """A node whose step has ended.

    Args:
        pack: The directory of the pack of its first GPU set.
        allocation: What Slurm gave the batch script.
        slurm: Slurm.
        fence_s: How long a runner there may take to end its members.
    """

    def __init__(
        self,
        pack: Path,
        allocation: Allocation,
        slurm: SlurmAccess,
        *,
        fence_s: float = FENCE_S,
    ) -> None:
        self._pack = pack
        self._allocation = allocation
        self._slurm = slurm
        self._fence_s = fence_s

    def settle(self) -> bool:
        """Let members of runners that are gone start again elsewhere.

        Returns:
            All of them do: what became of the node is not the job's failure.

        Raises:
            StateError: The packs cannot be read, or what is found not be written down.
        """
        left = [path for path in self._list_packs() if not self._has_ended(path)]
        if not left or self._ends():
            return False
        node = self._find_name()
        for path in left:
            # A controller that does not answer is no reason to let the others wait for ever.
            attempt = read_attempt(path)
            kill = RunnerKill(
                self._allocation.restarts, attempt, 0, time.time(), "the others go on", node
            )
            write_kill(path, kill)
            Journal(path).write("node_left", node=node)
        time.sleep(self._fence_s)
        freed = [self._free(path, node) for path in left]
        return all(freed)

    def _list_packs(self) -> list[Path]:
        record = insist("reading the pack", lambda: read_pack(self._pack))
        if record is None:
            raise StateError(f"{self._pack} is not on this node")
        return [self._pack.parent / name for name in list_node_packs(record, record.node)]

    def _has_ended(self, path: Path) -> bool:
        """Whether a runner has done all it had to, or its own guard has seen it die."""
        is_closed = inbox.list_waiting(str(path)) is None
        return is_closed or read_kill(path, self._allocation.restarts) is not None

    def _ends(self) -> bool:
        """Whether Slurm is ending the whole job, or has started it again."""
        with contextlib.suppress(SlurmError):
            fields = self._slurm.read_job(self._allocation.job_id)
            if fields is not None:
                standing = judge_standing(fields, self._allocation.restarts, time.time())
                return standing is not JobStanding.RUNS
        return False

    def _find_name(self) -> str:
        with contextlib.suppress(StateError):
            division = read_division(self._pack)
            if division is not None and division.restarts == self._allocation.restarts:
                return division.node
        return "another node"

    def _free(self, path: Path, node: str) -> bool:
        """Free the members of one pack that had begun; False where one may not start again."""
        site_requeues = requeues_jobs(self._read_config())
        attempt = read_attempt(path)
        all_go_on = True
        for number in inbox.list_taken(str(path)):
            record = read_state(path, number, attempt)
            end = find_written_end(path, number, record, starts_again=True)
            if end is not None:
                record = dataclasses.replace(end, attempt=attempt)
                write_state(path, number, record)
            if record is None or record.is_final or not record.starts:
                inbox.set_free(str(path), number)
                continue
            wish = read_spec(path, number).job.requeue
            # One of another submission moves no more.
            may = (site_requeues if wish is None else wish) and not is_guest(number)
            write_state(path, number, _tell_of_node(record, node, attempt, goes_on=may))
            if may:
                inbox.set_free(str(path), number)
            all_go_on = all_go_on and may
        return all_go_on

    def _read_config(self) -> dict[str, str]:
        with contextlib.suppress(SlurmError):
            return self._slurm.read_config()
        return {}


def _tell_of_node(record: StateRecord, node: str, attempt: int, *, goes_on: bool) -> StateRecord:
    """A member's record after the failure of its node."""
    told = f"{node} has left the job"
    evidence = tuple(dict.fromkeys((*record.evidence, f"Slurm: {told}")))
    if goes_on:
        return dataclasses.replace(
            record,
            state=MemberState.PENDING,
            attempt=attempt,
            reason=f"{told}; it runs again",
            cause=EndCause.NODE_FAILURE.value,
            evidence=evidence,
        )
    return dataclasses.replace(
        record,
        state=MemberState.NODE_FAIL,
        attempt=attempt,
        ended_at=time.time(),
        reason=f"{told}; it may not be requeued",
        cause=EndCause.NODE_FAILURE.value,
        evidence=evidence,
    )
