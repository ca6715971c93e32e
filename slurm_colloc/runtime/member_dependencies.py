"""Dependencies on members: letting jobs go that wait for ours, and judging our own.

Slurm holds a waiting job until our pack is over. As soon as its condition holds, the runner takes
that out of the job's dependency, in a thread: a controller that does not answer holds up nothing.
"""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from slurm_colloc.errors import CollocError, NotFound, SlurmError, SlurmUnreachable
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_values import (
    Condition,
    ConditionOutlook,
    Dependency,
    describe,
    judge_member,
    reduce_dependency,
    replace_job,
)
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import MemberId, MemberState, SlurmJobState, effective_state
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import find_guest, is_held, read_attempt, read_state
from slurm_colloc.store.pack_directory import read_ended, read_moved, read_slurm_job_id
from slurm_colloc.store.runner_requests import Dependent, forget_dependent, list_dependents
from slurm_colloc.store.written_ends import find_written_end

LOOK_EVERY_S = 1.0
RETRY_S = 5.0
LOCK_WAIT_S = 10.0


@dataclass(eq=False, kw_only=True)
class Dependents:
    """Lets the jobs go that wait for members of this pack.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        self._look_at = 0.0
        self._threads: dict[str, threading.Thread] = {}
        self._retry_at: dict[str, float] = {}

    def look(self, *, at_once: bool = False) -> None:
        """See which wait, and let go those whose condition is decided; never waits."""
        now = time.monotonic()
        if self.pack.slurm is None or (now < self._look_at and not at_once):
            return
        self._look_at = now + LOOK_EVERY_S
        for dependent in list_dependents(self.pack.path):
            running = self._threads.get(dependent.job_id)
            if (running is not None and running.is_alive()) or now < self._retry_at.get(
                dependent.job_id, 0.0
            ):
                continue
            clears = self._judge(dependent)
            if clears is None:
                continue
            thread = threading.Thread(
                target=self._let_go, args=(self.pack.slurm, dependent.job_id, clears), daemon=True
            )
            self._threads[dependent.job_id] = thread
            thread.start()

    @property
    def is_busy(self) -> bool:
        """Slurm is being told of some."""
        return any(thread.is_alive() for thread in self._threads.values())

    def _judge(self, dependent: Dependent) -> bool | None:
        """None to leave it waiting, True to let it go, False to take this pack off its list."""
        outlooks = {self._judge_own(kind, number) for kind, number in dependent.conditions}
        if dependent.is_any and ConditionOutlook.SATISFIED in outlooks:
            return True
        if dependent.is_any and outlooks == {ConditionOutlook.NEVER}:
            return False
        if not dependent.is_any and outlooks == {ConditionOutlook.SATISFIED}:
            return False
        return None

    def _judge_own(self, kind: str, number: int) -> ConditionOutlook:
        member = self.pack.members.by_number.get(number)
        if member is None:
            cancelled = self.pack.path / "members" / format_number(number) / "cancelled"
            state = MemberState.CANCELLED if cancelled.exists() else MemberState.PENDING
            return judge_member(kind, state, has_started=False)
        return judge_member(kind, member.record.state, has_started=member.record.starts > 0)

    def _let_go(self, slurm: SlurmAccess, job_id: str, clears: bool) -> None:
        # Two packs may let go of the same job: each changes what the other has left.
        with hold_lock(self.pack.path.parent.parent / "dependents.lock", LOCK_WAIT_S):
            try:
                fields = slurm.read_job(job_id) or {}
                current = fields.get("Dependency", "")
                rest = "" if clears else replace_job(current, self.pack.allocation.job_id)
                if not clears and not rest and self._waits_for_alternatives(job_id):
                    # Nothing else is left to wait for: it starts when this pack is over.
                    self._retry_at[job_id] = math.inf
                    return
                if fields.get("JobState") == "PENDING" and current not in ("", "(null)"):
                    slurm.update_job(job_id, {"Dependency": rest})
                    self.pack.journal.write("let_go", job=job_id, dependency=rest)
            except SlurmUnreachable:
                self._retry_at[job_id] = time.monotonic() + RETRY_S
                return
            except SlurmError as error:
                self.pack.journal.write("not_let_go", job=job_id, reason=str(error))
        forget_dependent(self.pack.path, job_id)

    def _waits_for_alternatives(self, job_id: str) -> bool:
        return any(
            dependent.is_any
            for dependent in list_dependents(self.pack.path)
            if dependent.job_id == job_id
        )


def hand_over(pack: PackContext, slurm: SlurmAccess, job_id: str) -> None:
    """Have the jobs that wait for members of this pack wait for the next link of its chain.

    Args:
        pack: The attempt of the pack.
        slurm: Slurm.
        job_id: The Slurm job of the next link.
    """
    with hold_lock(pack.path.parent.parent / "dependents.lock", LOCK_WAIT_S):
        for dependent in list_dependents(pack.path):
            try:
                current = (slurm.read_job(dependent.job_id) or {}).get("Dependency", "")
                then = replace_job(current, pack.allocation.job_id, job_id)
                if then not in ("", current):
                    slurm.update_job(dependent.job_id, {"Dependency": then})
            except SlurmError as error:
                pack.journal.write("not_handed_over", job=dependent.job_id, reason=str(error))


def judge_own_dependency(
    state: State, slurm: SlurmAccess | None, job: Job
) -> tuple[ConditionOutlook, str]:
    """Judge what a job waits for, before it starts.

    Returns:
        The outlook; what is waited for where it is OPEN, why in words where it is NEVER, else
        nothing.
    """
    dependency = Dependency(
        tuple(Condition(kind, target) for kind, target in job.depends), job.depends_on_any
    )
    failed: list[Condition] = []

    def judge(condition: Condition) -> ConditionOutlook:
        outlook = judge_condition(state, slurm, condition)
        if outlook is ConditionOutlook.NEVER:
            failed.append(condition)
        return outlook

    outlook, rest = reduce_dependency(dependency, judge)
    if outlook is ConditionOutlook.NEVER:
        if dependency.is_any:
            return outlook, f"Dependency {describe(job.depends, is_any=True)} was not satisfied"
        first = failed[0]
        return outlook, f"Dependency on {first.target} ({first.kind}) was not satisfied"
    if outlook is ConditionOutlook.OPEN:
        pairs = [(condition.kind, condition.target) for condition in rest.conditions]
        return outlook, describe(pairs, is_any=rest.is_any)
    return outlook, ""


def judge_condition(
    state: State, slurm: SlurmAccess | None, condition: Condition
) -> ConditionOutlook:
    """Judge one condition from the state, and from Slurm where nothing was written."""
    try:
        if not condition.is_of_member:
            return _judge_job(slurm, condition)
        return _judge_elsewhere(state, slurm, condition)
    except CollocError:
        return ConditionOutlook.OPEN


def _judge_job(slurm: SlurmAccess | None, condition: Condition) -> ConditionOutlook:
    fields = None
    if slurm is not None and condition.kind in ("after", "afterany", "afternotok", "afterok"):
        fields = slurm.read_job(condition.target.partition("+")[0])
    if not fields:
        return ConditionOutlook.OPEN
    slurm_state = SlurmJobState.parse(fields.get("JobState", ""))
    started = slurm_state is not SlurmJobState.PENDING
    recorded = MemberState.RUNNING if started else MemberState.PENDING
    if slurm_state is SlurmJobState.COMPLETED:
        recorded = MemberState.COMPLETED
    elif slurm_state is SlurmJobState.FAILED:
        recorded = MemberState.FAILED
    return judge_member(condition.kind, effective_state(recorded, slurm_state), has_started=started)


def _judge_elsewhere(
    state: State, slurm: SlurmAccess | None, condition: Condition
) -> ConditionOutlook:
    member = MemberId.parse(condition.target)
    path, number = find_member_place(state, member)
    attempt = read_attempt(path)
    cancelled = (path / "members" / format_number(number) / "cancelled").exists()
    slurm_state = read_ended(path)
    if slurm_state is None and slurm is not None:
        fields = slurm.read_job(read_slurm_job_id(path) or member.job)
        slurm_state = SlurmJobState.parse(fields.get("JobState", "") if fields else "")
    record = read_state(path, number, attempt)
    if slurm_state is not None and not slurm_state.may_have_runner:
        starts_again = slurm_state is SlurmJobState.PENDING
        end = find_written_end(path, number, record, starts_again=starts_again)
        record = end or record
    recorded = record.state if record else MemberState.PENDING
    seen = effective_state(recorded, slurm_state, cancelled=cancelled, held=is_held(path, number))
    return judge_member(condition.kind, seen, has_started=bool(record and record.starts))


def find_member_place(state: State, member: MemberId) -> tuple[Path, int]:
    """The pack where a member is now, and its number there.

    It may have been taken over by another one, or submitted again in one.

    Raises:
        NotFound: There is no such member.
    """
    takers = state.list_takers(member.job)
    for pack_id in state.find_packs(member.job):
        path = state.pack_path(pack_id)
        number = find_guest(path, member) if pack_id in takers else member.number
        if number is not None and (path / "members" / format_number(number)).is_dir():
            moved = read_moved(path, number)
            while moved is not None:
                # With the number that its submission gave it.
                path, number = state.pack_path(moved), member.number
                moved = read_moved(path, number)
            return path, number
    raise NotFound(f"job {member.job} has no member {member.number}")
