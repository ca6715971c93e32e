"""A pack whose runner was killed starts again, as it would after the loss of its node.

The guard asks Slurm to requeue it, where Slurm itself would do so after a failure of the node. What
Slurm is ending already it leaves to Slurm. Where the pack may not start again, members that live
run to their ends, and its job ends with the last of them.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, StateError
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.runtime.allocation import Allocation, read_allocation
from slurm_colloc.runtime.guarded_steps import Journal, is_passing
from slurm_colloc.runtime.pause_members import list_wrappers
from slurm_colloc.runtime.verdict import judge_pack
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import list_gpu_set_packs
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import StateRecord, read_attempt, was_left
from slurm_colloc.store.pack_directory import list_members, read_pack
from slurm_colloc.store.written_ends import (
    RunnerKill,
    forget_kill,
    list_kills,
    read_kill,
    read_settled,
    write_kill,
)

RESTARTS_MAX = 2
"""How often a pack starts again because of killed runners: what kills them may be in the pack."""


ASK_FOR_S = 600.0
"""How long Slurm is asked that does not answer, where no member lives; else as long as one does."""

ALL_ENDED = "all its members had ended"


class JobStanding(enum.Enum):
    """What Slurm makes of a pack whose runner was killed."""

    RUNS = "its job runs"
    ENDS = "its job is being ended, for whatever reason"
    ELSEWHERE = "a later attempt runs"


def judge_standing(fields: Mapping[str, str], restarts: int, now: float) -> JobStanding:
    """Judge the pack from `scontrol show job`; pure.

    Args:
        fields: The job's fields.
        restarts: Slurm's restart count when the runner began.
        now: Seconds since the epoch.
    """
    verdict = judge_pack(fields, restarts, "")
    # Slurm looks for jobs whose time is up every 30 s, and shows them as running until then.
    if verdict is None or not verdict.goes_on or _is_time_up(fields, now):
        return JobStanding.ENDS
    is_this = int(fields.get("Restarts", "0")) == restarts
    return JobStanding.RUNS if is_this else JobStanding.ELSEWHERE


def _is_time_up(fields: Mapping[str, str], now: float) -> bool:
    """Whether a job has run for as long as it may, or its end has been set to a moment before now.

    In autumn an hour comes twice, and the clock time of an end in it means the later one here.
    """
    with contextlib.suppress(KeyError, ValueError):
        used_s = parse_time_limit_s(fields["RunTime"])
        limit_s = parse_time_limit_s(fields["TimeLimit"])
        if used_s is not None and limit_s is not None and used_s >= limit_s:
            return True
    with contextlib.suppress(KeyError, OverflowError, ValueError):
        end = datetime.datetime.fromisoformat(fields["EndTime"])
        return now >= max(end.replace(fold=fold).timestamp() for fold in (0, 1))
    return False


def find_refusal(fields: Mapping[str, str], earlier: int, *, has_unfinished: bool) -> str:
    """Why a pack that Slurm shows running is not to be requeued; empty for nothing; pure.

    Args:
        fields: The job's fields.
        earlier: How often it was requeued for a killed runner before.
        has_unfinished: A member has not ended.
    """
    if not has_unfinished:
        return ALL_ENDED
    if fields.get("Requeue") != "1":
        return "it may not be requeued"
    if earlier >= RESTARTS_MAX:
        return f"it was restarted {earlier} times before"
    return ""


def requeue_pack(path: str, number: int, killed_at: float) -> bool | None:
    """Ask Slurm to requeue the pack of this job; see `KilledRunner.requeue`."""
    pack, allocation = Path(path), read_allocation(read_given_environment())
    try:
        return KilledRunner(pack, allocation, SlurmAccess(), number, killed_at).requeue()
    except (OSError, StateError) as error:
        if is_passing(error) and may_wait(pack, killed_at):
            return None
        raise


def may_wait(pack: Path, killed_at: float) -> bool:
    """Whether an answer is still to be waited for: members live, or it was not long ago."""
    return time.time() - killed_at < ASK_FOR_S or bool(list_wrappers(str(pack)))


class KilledRunner:
    """One killed runner.

    Args:
        pack: The pack's directory.
        allocation: What Slurm gave the runner.
        slurm: Slurm.
        number: The signal that it died of.
        killed_at: When, in seconds since the epoch.
    """

    def __init__(
        self,
        pack: Path,
        allocation: Allocation,
        slurm: SlurmAccess,
        number: int,
        killed_at: float,
    ) -> None:
        self._pack = pack
        self._job_id = allocation.job_id
        self._restarts = allocation.restarts
        self._slurm = slurm
        self._kill = RunnerKill(allocation.restarts, read_attempt(pack), number, killed_at)

    def requeue(self) -> bool | None:
        """Have the pack requeued, where it may be, and write down what came of it.

        Members that have ended meanwhile are known by what their wrappers have written: where none
        is left, nothing is to be asked any more.

        Returns:
            Slurm ends the job now, by this requeue or because it does anyway; None where it has
            not answered, and is to be asked again: members live, or it was not long ago. None, too,
            where it is refused and members live.

        Raises:
            StateError: It cannot be written down, so nothing was done.
        """
        known = read_kill(self._pack, self._restarts)
        if known is not None and known.refusal:
            return self._wait_for_members()
        has_unfinished = self._has_unfinished()
        try:
            fields = self._slurm.read_job(self._job_id)
        except SlurmError as error:
            if has_unfinished and may_wait(self._pack, self._kill.at):
                return None
            what = f"Slurm could not be asked to requeue it: {error.message}"
            return self._refuse(what if has_unfinished else ALL_ENDED)
        if fields is None:
            return self._refuse("Slurm does not know its job any more")
        asked_before = known is not None
        standing = self._judge(fields)
        if standing is not JobStanding.RUNS:
            if asked_before:
                self._note_answer(fields)
            return standing is JobStanding.ENDS
        kills = (kill for pack in self._list_sets() for kill in list_kills(pack))
        earlier = sum(not kill.refusal and kill.restarts != self._restarts for kill in kills)
        refusal = find_refusal(fields, earlier, has_unfinished=has_unfinished)
        if refusal:
            return self._refuse(refusal)
        # Before Slurm is asked: it counts, whatever becomes of this process.
        write_kill(self._pack, self._kill)
        return self._ask_slurm()

    def _ask_slurm(self) -> bool | None:
        problem = ""
        try:
            self._slurm.requeue_running(self._job_id)
        except SlurmNoAnswer as error:
            problem = error.message
        except SlurmError as error:
            return self._refuse(f"Slurm did not requeue it: {error.message}")
        try:
            fields = self._slurm.read_job(self._job_id)
        except SlurmError:
            # It may have been done, and then the next look shows it.
            return None
        if fields is not None and self._judge(fields) is JobStanding.RUNS:
            if problem and may_wait(self._pack, self._kill.at):
                return None
            return self._refuse(f"Slurm did not requeue it: {problem or 'it runs on'}")
        self._note_answer(fields)
        return True

    def _note_answer(self, fields: Mapping[str, str] | None) -> None:
        """Write down what came of a requeue that was asked for."""
        if fields is not None and int(fields.get("Restarts", "0")) <= self._restarts:
            # It was cancelled, or the like, between the two questions.
            forget_kill(self._pack, self._restarts)
        else:
            self._tell("")

    def _judge(self, fields: Mapping[str, str]) -> JobStanding:
        return judge_standing(fields, self._restarts, time.time())

    def _list_sets(self) -> list[Path]:
        """The packs of all GPU sets of the job: it starts again as one."""
        names: list[str] = []
        with contextlib.suppress(StateError):
            record = read_pack(self._pack)
            if record is not None:
                names = [n for n in list_gpu_set_packs(record) if n != record.pack_id]
        return [self._pack, *(self._pack.parent / name for name in names)]

    def _has_unfinished(self) -> bool:
        return any(self._is_unfinished(number) for number in list_members(self._pack))

    def _is_unfinished(self, number: int) -> bool:
        """Whether a member would start in the next attempt."""
        record = read_settled(
            self._pack, number, self._kill.attempt, starts_again=True, killed_at=self._kill.at
        )
        if record is not None and record.is_final:
            return False
        # Of one that was cancelled while it waited no state is written.
        is_cancelled = is_there(self._pack / "members" / format_number(number) / "cancelled")
        return not is_cancelled and not was_left(self._pack, number)

    def _refuse(self, refusal: str) -> bool | None:
        write_kill(self._pack, replace(self._kill, refusal=refusal))
        self._tell(refusal)
        return self._wait_for_members()

    def _wait_for_members(self) -> bool | None:
        """What a refusal comes to: nothing is to be done as long as a member lives."""
        return None if list_wrappers(str(self._pack)) else False

    def _tell(self, refusal: str) -> None:
        Journal(self._pack).write(
            "runner_killed", signal=self._kill.signal, requeued=not refusal, reason=refusal
        )


def find_killed_before(pack: Path, allocation: Allocation) -> RunnerKill | None:
    """The killed runner for which Slurm has restarted the job; None where it was not for one."""
    with contextlib.suppress(StateError):
        kill = read_kill(pack, allocation.restarts - 1)
        if kill is not None and not kill.refusal:
            return kill
    return None


def tell_of_restart(record: StateRecord, kill: RunnerKill) -> StateRecord:
    """A member's record with the reason why it starts again."""
    evidence = (*record.evidence, f"restarted: {kill}")
    return replace(record, reason=f"{kill}; it runs again", evidence=tuple(dict.fromkeys(evidence)))
