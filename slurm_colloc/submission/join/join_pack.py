"""Putting a job into a pack that is already there, instead of a new one.

Everything that changes a pack after its submission happens under the pack's lock, which its runner
also takes for the moment in which it starts. A pack that waits grows first (one `scontrol update`,
which Slurm refuses once the pack has started), and then the job enters its inbox by one rename. A
pack that runs is only entered, where a place is free. Whatever happens before the rename leaves
the job out, whatever happens after it leaves it in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import Interrupted, SlurmError, StateError
from slurm_colloc.model.member import MemberId
from slurm_colloc.model.plan import PackPlan, Policy
from slurm_colloc.planning.join.join_fit import compute_reason_not_to_join
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts, hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.atomic_files import Lock, hold_lock
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.member_states import (
    find_next_number,
    name_member,
    read_attempt,
    remove_environment,
)
from slurm_colloc.store.pack.pack_directory import (
    MemberSpec,
    NewMember,
    PackRecord,
    drop_claimed,
    drop_unentered,
    has_entered,
    list_claimed,
    write_joiner,
    write_record,
    write_spec,
)
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.join.join_terms import (
    Chosen,
    Joiner,
    Present,
    Prospect,
    list_candidates,
)
from slurm_colloc.submission.packs.build_packs import encode_environment
from slurm_colloc.submission.packs.call_batches import HookChoice, extend_comment
from slurm_colloc.submission.packs.open_job import Growth
from slurm_colloc.submission.plan.plan_call import compute_measure_s
from slurm_colloc.submission.plan.target_nodes import Destinations
from slurm_colloc.submission.upkeep.sweep import OpenPack

LOCK_WAIT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Joined:
    """A job that joined a pack.

    Attributes:
        member: Its name.
        record: The pack as it is now.
        partners: The members that it shares with.
        is_running: The pack runs already.
        places: How many members can be in the pack at the same time, at most.
    """

    member: MemberId
    record: PackRecord
    partners: tuple[MemberId, ...]
    is_running: bool
    places: int


def join_open_pack(
    call: Call,
    policy: Policy,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    *,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob],
    running: bool,
    only_plan: bool = False,
) -> tuple[Joined | None, tuple[str, ...]]:
    """Let the only job of a call join the first open pack that has room for it.

    Args:
        call: The call.
        policy: How far sharing may go.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        packs: The open packs.
        jobs: What squeue shows of them.
        running: Packs that run may be joined, too.
        only_plan: Find the pack that it would join, and change nothing.

    Returns:
        What it joined, or None; and for each pack of its kind why it did not join it.

    Raises:
        CollocError: The state cannot be written, or the user has interrupted it.
    """
    if len(call.candidates) != 1 or call.array is not None:
        return None, ()
    candidate = call.candidates[0]
    if compute_reason_not_to_join(candidate.job, policy):
        return None, ()
    # Together with those that are there it is measured.
    policy = dataclasses.replace(policy, measure_s=compute_measure_s([candidate], settings))
    refusals: list[str] = []
    joiner = Joiner(candidate, policy, Destinations(settings, slurm), settings)
    for pack_id, job in list_candidates(candidate, state, packs, jobs, running=running):
        join = _Join(state, joiner, pack_id, job, slurm, HookChoice.of(settings))
        # First without the lock: most packs are full.
        answer = join.plan()
        if isinstance(answer, Joined) and not only_plan:
            lock = join.path / "lock"
            with hold_interrupts() as held, hold_lock(lock, LOCK_WAIT_S) as locked:
                answer = join.run(held, locked) if locked else "another csub is changing it"
            if held.came() and not isinstance(answer, Joined):
                raise Interrupted("interrupted; nothing was submitted")
        if isinstance(answer, Joined):
            return answer, tuple(refusals)
        refusals.append(f"pack {job.job_id}: {answer}")
    return None, tuple(refusals)


@dataclasses.dataclass(frozen=True)
class _Join(Prospect):
    """One attempt to join one pack, under its lock."""

    slurm: SlurmAccess
    hooks: HookChoice

    def plan(self) -> Joined | str:
        """What joining would give, or why it cannot be; nothing is changed."""
        try:
            chosen = self.choose()
        except StateError as problem:
            return str(problem)
        if isinstance(chosen, str):
            return chosen
        number = find_next_number([*list_claimed(self.path), *chosen.record.members])
        return self._describe(chosen, chosen.record, number)

    def run(self, held: HeldInterrupts, lock: Lock) -> Joined | str:
        """Join, or say why not; the caller holds the pack's lock."""
        drop_unentered(self.path)
        chosen = self.choose()
        if isinstance(chosen, str):
            return chosen
        if held.came():
            raise Interrupted("interrupted; nothing was submitted")
        # What a full disk can prevent comes before Slurm is asked.
        number = self._write_joiner(chosen)
        entered = None
        try:
            entered = self._enter(chosen, number, lock)
        finally:
            # Where it is not known whether it has entered, nothing of it is removed.
            if not (isinstance(entered, PackRecord) or has_entered(self.path, number)):
                drop_claimed(self.path, number)
        if isinstance(entered, str):
            return entered
        record = dataclasses.replace(entered, members=(*entered.members, number))
        with contextlib.suppress(StateError):
            # It has entered, and nothing may say otherwise: its own files are what counts.
            write_record(self.path, record)
        base = self.job.job_id
        if held.came() and inbox.withdraw(str(self.path), number):
            remove_environment(self.path, number)
            raise Interrupted(f"interrupted; {base}/{number} had joined and has been cancelled")
        if self.is_running:
            with contextlib.suppress(SlurmError):
                self.slurm.wake_batch_script(base)
        return self._describe(chosen, record, number)

    def _describe(self, chosen: Chosen, record: PackRecord, number: int) -> Joined:
        base = self.job.job_id
        return Joined(
            member=MemberId(base, number),
            record=record,
            partners=tuple(name_member(self.path, base, p.number) for p in chosen.present),
            is_running=self.is_running,
            places=chosen.places,
        )

    def _write_plan(
        self, record: PackRecord, planned: PackPlan, present: Sequence[Present]
    ) -> PackRecord:
        for member, plan in zip(present, planned.members, strict=False):
            if plan != member.spec.plan:
                folder = self.path / "members" / inbox.format_number(member.number)
                write_spec(folder, dataclasses.replace(member.spec, plan=plan))
        record = dataclasses.replace(
            record,
            request=planned.request,
            degree=planned.degree,
            mode=planned.mode,
            reasons=planned.reasons,
        )
        write_record(self.path, record)
        return record

    def _write_joiner(self, chosen: Chosen) -> int:
        """Claim a number and write the job's files, ready to enter; the number."""
        # One whose member another pack has taken over is not given again.
        number = find_next_number([*list_claimed(self.path), *chosen.record.members])
        while not inbox.claim_number(str(self.path), number):
            number += 1
        umask = os.umask(0o077)
        os.umask(umask)
        spec = MemberSpec(
            job=dataclasses.replace(self.joiner.candidate.job, number=number),
            plan=chosen.own_plan,
            umask=umask,
            joined=make_submission_id(),
            joined_at=time.time(),
        )
        environment = encode_environment(self.joiner.candidate.environment)
        try:
            write_joiner(self.path, NewMember(spec, self.joiner.candidate.script, environment))
        except BaseException:
            drop_claimed(self.path, number)
            raise
        return number

    def _enter(self, chosen: Chosen, number: int, lock: Lock) -> PackRecord | str:
        """Grow the pack if it waits, and put the job into its inbox; the pack, or why not."""
        planned = chosen.planned
        record = chosen.record
        if isinstance(planned, PackPlan):
            seen = self.job.comment
            comment, notes = extend_comment(seen, record.submission, planned.mode, self.hooks)
            growth = Growth(
                self.slurm,
                self.job.job_id,
                comments=(seen, comment),
                inherited=lock.descriptors,
            )
            planned = dataclasses.replace(planned, reasons=(*planned.reasons, *notes))
            assert planned.request is not None
            refusal = growth.grow(planned.request)
            if refusal:
                return refusal
            if self._has_started(chosen):
                return "it has just started"
            try:
                record = self._write_plan(record, planned, chosen.present)
            except StateError:
                growth.take_back()
                raise
            if self._has_started(chosen):
                return "it has just started"
        return record if inbox.enter(str(self.path), number) else "it has just ended"

    def _has_started(self, chosen: Chosen) -> bool:
        """Its runner begins an attempt under this lock, unless it has waited in vain for it."""
        return read_attempt(self.path) != chosen.attempt
