"""Members as a reader must see them: what was written, joined with what Slurm says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import (
    FINAL_STATES,
    MemberId,
    MemberState,
    SlurmJobState,
    effective_state,
)
from slurm_colloc.slurm.formats import SlurmJob
from slurm_colloc.store.directory import (
    is_local_alive,
    list_members,
    read_ended,
    read_slurm_job_id,
    read_spec,
)
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.packs import State
from slurm_colloc.store.records import MemberSpec, PackRecord
from slurm_colloc.store.states import StateRecord, read_attempt, read_state


@dataclass(frozen=True)
class MemberView:
    """One member.

    Attributes:
        member: Its name.
        spec: What it runs.
        state: What it is (see effective_state).
        record: What its runner wrote last; None before its first start.
        reason: Why it is in this state, in words.
    """

    member: MemberId
    spec: MemberSpec
    state: MemberState
    record: StateRecord | None
    reason: str

    @property
    def is_final(self) -> bool:
        """It will not run again."""
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class PackView:
    """One pack.

    Attributes:
        record: What was planned.
        job_id: What Slurm calls it, `4711` or `4711_2`; empty while that is not known.
        slurm: Slurm's row; None where Slurm has forgotten it or does not answer.
        slurm_state: State of its Slurm job; None where Slurm could not be asked.
        members: Its members by number.
    """

    record: PackRecord
    job_id: str
    slurm: SlurmJob | None
    slurm_state: SlurmJobState | None
    members: tuple[MemberView, ...]

    @property
    def shown_id(self) -> str:
        """The id that its members are named after."""
        return self.job_id.partition("_")[0]


def survey_packs(
    state: State,
    pack_ids: Iterable[str],
    jobs: Mapping[str, SlurmJob] | None,
    damaged: list[StateError] | None = None,
) -> list[PackView]:
    """Look at packs.

    Args:
        state: The state directory.
        pack_ids: Which packs.
        jobs: What squeue shows; None where Slurm did not answer.
        damaged: Takes what is wrong with packs that cannot be read, which are then left out.

    Raises:
        StateError: A file is damaged, and `damaged` was not given.
    """
    views = []
    for pack_id in pack_ids:
        try:
            view = _look_at(state, pack_id, jobs)
            if view is not None:
                views.append(_with_members(state, view))
        except StateError as problem:
            if damaged is None:
                raise
            damaged.append(problem)
    return sorted(views, key=_compute_order)


def _look_at(state: State, pack_id: str, jobs: Mapping[str, SlurmJob] | None) -> PackView | None:
    record = state.read_pack(pack_id)
    if record is None:
        return None
    job_id = read_slurm_job_id(state.pack_path(pack_id)) or ""
    return PackView(
        record=record,
        job_id=job_id,
        slurm=(jobs or {}).get(job_id),
        slurm_state=_read_slurm_state(state, record, job_id, jobs),
        members=(),
    )


def _compute_order(view: PackView) -> tuple[bool, bool, int, int]:
    """By Slurm's job ids and elements, then packs without Slurm, then those without an id yet."""
    number = view.shown_id.removeprefix("L")
    is_local = number != view.shown_id
    return (not number, is_local, int(number or 0), view.record.index)


def _read_slurm_state(
    state: State, record: PackRecord, job_id: str, jobs: Mapping[str, SlurmJob] | None
) -> SlurmJobState | None:
    path = state.pack_path(record.pack_id)
    ended = read_ended(path)
    if ended is not None:
        return ended
    if record.local:
        return SlurmJobState.RUNNING if is_local_alive(path) else SlurmJobState.ABSENT
    if jobs is None or state.is_elsewhere(record):
        return None
    if not job_id:
        return SlurmJobState.PENDING
    job = jobs.get(job_id)
    return SlurmJobState.ABSENT if job is None else job.state


def _with_members(state: State, view: PackView) -> PackView:
    path = state.pack_path(view.record.pack_id)
    attempt = read_attempt(path)
    members = []
    for number in list_members(path):
        record = read_state(path, number, attempt)
        folder = path / "members" / format_number(number)
        effective = effective_state(
            record.state if record else MemberState.PENDING,
            view.slurm_state,
            cancelled=os.path.lexists(folder / "cancelled"),
            carried=view.record.carried,
        )
        members.append(
            MemberView(
                member=MemberId(view.shown_id or "?", number),
                spec=read_spec(path, number),
                state=effective,
                record=record,
                reason=_compute_reason(effective, record, view, attempt),
            )
        )
    return PackView(view.record, view.job_id, view.slurm, view.slurm_state, tuple(members))


def _compute_reason(
    state: MemberState, record: StateRecord | None, view: PackView, attempt: int
) -> str:
    if view.record.carried and state is MemberState.FAILED:
        return "a member of its pack failed; csub-*.log in the submission directory says which"
    if state is MemberState.PENDING:
        if view.slurm is not None and view.slurm_state is SlurmJobState.PENDING:
            return view.slurm.reason
        if view.slurm_state in (SlurmJobState.RUNNING, SlurmJobState.COMPLETING):
            return "Degree" if record is None or not record.reason else record.reason
        return ""
    if state is MemberState.LOST and attempt == 0 and view.slurm_state is SlurmJobState.FAILED:
        return "it ended before the pack began: do the compute nodes see the state directory?"
    if state is MemberState.LOST:
        return "its Slurm job is gone, and nobody saw how it ended"
    if record is not None and record.state is state:
        return record.reason
    return f"its Slurm job: {view.slurm_state.value}" if view.slurm_state else ""
