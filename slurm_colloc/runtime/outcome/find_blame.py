"""Whose fault an end was: gathers what the GPU, its MPS server and the output say of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.end_causes import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.limits.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.gpu.mps_clients import MpsMember
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.blame import Blame, Circumstances, judge_blame
from slurm_colloc.runtime.outcome.output_evidence import MPS_SIGNS, Sign, find_signs
from slurm_colloc.runtime.outcome.verdict import StopReason, Verdict
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.store.learned.faults import compute_signature, forget_culprit, note_culprit
from slurm_colloc.store.pack.inbox import format_number

OUTPUT_LIMIT = 256 * 1024
"""How much of the end of a member's output is looked at."""


class BlameFinder:
    """Finds out whose fault an end was, and tells those whom that concerns.

    Args:
        pack: The pack's directory.
        allocation: The allocation.
        members: The members.
        states: Writes their states.
        gpu_mode: Knows which members shared the GPU how.
        journal: The pack's log.
        site_requeues: Slurm's JobRequeue.
        find_process_mb: What a member's process was seen to take of the GPU's memory.
        has_other_sets: Members that lose their GPU may start again in another set of the job.
    """

    def __init__(
        self,
        *,
        pack: Path,
        allocation: Allocation,
        members: PackMembers,
        states: StateWriter,
        gpu_mode: GpuMode,
        journal: Journal,
        site_requeues: bool,
        find_process_mb: Callable[[Member], float | None] = lambda _: None,
        has_other_sets: bool = False,
    ) -> None:
        self._pack = pack
        self._allocation = allocation
        self._members = members
        self._states = states
        self._gpu_mode = gpu_mode
        self._journal = journal
        self._site_requeues = site_requeues
        self._find_process_mb = find_process_mb
        self._has_other_sets = has_other_sets
        self._suspected_with: dict[int, set[int]] = {}

    def find(self, member: Member, verdict: Verdict) -> Blame:
        """Judge an end; called before the member's process is forgotten."""
        around = Circumstances(retries=member.record.retries)
        clients = self._gpu_mode.clients
        seen = clients.get(member.number)
        if verdict.state is MemberState.FAILED and not verdict.never_started:
            around = self._look_around(member, around)
        elif seen is not None and not (seen.is_client or seen.is_outside):
            # It was quick: whether it was a client stands in the daemon's log.
            self._gpu_mode.catch_up()
        if seen is not None and member.gpu is not None and (seen.is_client or seen.is_outside):
            member.gpu = dataclasses.replace(member.gpu, is_mps_client=seen.is_client)
        clients.forget(member.number)
        if around.suspects:
            self._suspected_with.setdefault(member.number, set()).update(around.suspects)
        return judge_blame(verdict, around)

    def publish(self, member: Member, blame: Blame) -> None:
        """Write down what an end means for others: members that it hit, and later packs."""
        if blame.is_culprit:
            self._note_culprit(member, blame)
        elif blame.verdict.state is MemberState.COMPLETED and _ran_alone(member):
            self._clear(member)

    def _look_around(self, member: Member, around: Circumstances) -> Circumstances:
        findings = find_signs(read_end_of_output(member))
        use = member.gpu
        gpu_lost = ""
        if self._has_other_sets and (findings or member.asked is StopReason.FAULT):
            gpu_lost = self._gpu_mode.find_lost()
        seen = None
        if use is not None and use.is_under_mps:
            # Its end may have been seen before what the server said of it.
            self._gpu_mode.catch_up()
            seen = self._gpu_mode.clients.get(member.number)
        if seen is None:
            # Another's MPS, if any.
            findings = tuple(found for found in findings if found.sign not in MPS_SIGNS)
        job, limit_mb = member.spec.job, None
        if use is not None and (use.is_under_mps or use.inside):
            limit_mb = use.gpu_memory_limit_mb
        around = dataclasses.replace(
            around,
            findings=findings,
            may_restart=self._site_requeues if job.requeue is None else job.requeue,
            is_forbidden=job.requeue is False,
            gpu_memory_mb=round(max(self._find_process_mb(member) or 0, limit_mb or 0)),
            limit_mb=limit_mb,
            stated_mb=job.gpu_memory_mb,
            usable_mb=compute_usable_gpu_memory_mb(self._gpu_mode.setup.gpu_memory_mb),
            # All of its instance's memory is its own, unless others share that.
            shared=len(self._members.places) > 1
            and (use is None or use.mode != SharingMode.MIG.value or bool(use.inside)),
            needs_mps=self._gpu_mode.needs_mps,
            gpu_lost=gpu_lost,
        )
        return around if seen is None else add_seen(around, member.number, seen)

    def _note_culprit(self, member: Member, blame: Blame) -> None:
        """A culprit is proven: write it down for later packs, and for the members that it hit."""
        name = str(member.name(self._allocation.shown_job_id))
        self._journal.write("mps_culprit", member=member.number, evidence=blame.evidence)
        with contextlib.suppress(StateError, OSError):
            note_culprit(
                self._pack.parent.parent, self._compute_signature(member), name, blame.evidence
            )
        told = f"the fault was that of member {name}"
        # An earlier attempt may have seen the fault; this one knows only which were hit.
        hit = self._suspected_with.get(member.number)
        for other in self._members.by_number.values():
            was_hit = other.record.retries.suspected if hit is None else other.number in hit
            if other.number == member.number or not was_hit:
                continue
            cause = other.record.cause
            self._states.write(
                other,
                other.record.state,
                evidence=tuple(dict.fromkeys((*other.record.evidence, told))),
                cause=EndCause.MPS_VICTIM.value if cause == EndCause.MPS_SUSPECT else cause,
            )

    def _clear(self, member: Member) -> None:
        with contextlib.suppress(OSError):
            if forget_culprit(self._pack.parent.parent, self._compute_signature(member)):
                self._journal.write("mps_cleared", member=member.number)

    def _compute_signature(self, member: Member) -> str:
        script = self._pack / "members" / format_number(member.number) / "script"
        return compute_signature(script.read_bytes(), member.spec.job)


def _ran_alone(member: Member) -> bool:
    """It had the GPU to itself. By time slices alongside others is not alone."""
    return member.gpu is not None and member.gpu.mode == SharingMode.EXCLUSIVE.value


def add_seen(around: Circumstances, number: int, seen: MpsMember) -> Circumstances:
    """What the MPS server has to do with the end of a member that ran under MPS."""
    tells = {found.sign for found in around.findings}
    if Sign.MPS_GONE in tells:
        return dataclasses.replace(around, mps_lost=seen.lost or "the MPS server has ended")
    if seen.lost and seen.is_client:
        return dataclasses.replace(around, mps_lost=seen.lost)
    # One that is not known to be a client may have been too quick to be seen as one.
    if seen.suspects and (seen.is_client or Sign.FAULT in tells):
        return dataclasses.replace(around, suspects=seen.suspects, fault=seen.fault)
    if seen.is_client and Sign.FAULT in tells:
        # No other is known to be hit, and that proves nothing without the server's word.
        return dataclasses.replace(around, suspects=(number,))
    return around


def read_end_of_output(member: Member) -> str:
    """The end of what a member has written since its last start; empty where it cannot be read."""
    texts = []
    for path, start in member.outputs:
        with contextlib.suppress(OSError):
            # A pipe or a device would be waited for, or read what is not there.
            if not stat.S_ISREG(os.stat(path).st_mode):
                continue
            with open(path, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(min(start, end), end - OUTPUT_LIMIT))
                texts.append(file.read(OUTPUT_LIMIT).decode("utf-8", "replace"))
    return "\n".join(texts)
