"""Members as a reader must see them: what was written, joined with what Slurm says.

Also: the user's newest submission.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.model.job_values import describe
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.member import (
    MemberId,
    MemberState,
    Selection,
    SlurmJobState,
    effective_state,
)
from slurm_colloc.report.member_views import MemberView, PackView, find_stale, show_once
from slurm_colloc.slurm.slurm_commands import SlurmJob, find_job_of
from slurm_colloc.store.all_packs import (
    MemberFiles,
    StateReader,
    explain_unreadable,
    list_member_files,
)
from slurm_colloc.store.atomic_files import find_missing_directories, is_there, read_json
from slurm_colloc.store.member_states import (
    PARKED,
    StateRecord,
    read_attempt,
    read_home,
    read_state,
)
from slurm_colloc.store.pack_directory import (
    PackRecord,
    is_local_alive,
    read_ended,
    read_moved,
    read_slurm_job_id,
)
from slurm_colloc.store.written_ends import find_kill, find_written_end

_OVER = (SlurmJobState.ABSENT, SlurmJobState.PENDING, SlurmJobState.COMPLETED)
LOOKS_MOST = 2
"""How often packs are looked at again whose members are just moving."""

MOVING = "it is being taken over by another pack"

HELD = "JobHeldUser"
"""What Slurm says of a job that its user holds, and csub of such a member."""


def survey_packs(
    state: StateReader,
    pack_ids: Iterable[str],
    jobs: Mapping[str, SlurmJob] | None,
    damaged: list[StateError] | None = None,
    known: Mapping[str, PackRecord | None] | None = None,
) -> list[PackView]:
    """Look at packs.

    Args:
        state: The state directory.
        pack_ids: Which packs.
        jobs: What squeue shows; None where Slurm did not answer.
        damaged: Takes what is wrong with packs and members that cannot be read, which are then
            left out.
        known: Packs whose pack.json was read a moment ago, by id.

    Raises:
        StateError: A file is damaged, and `damaged` was not given.
    """
    views = []
    for pack_id in pack_ids:
        view = _survey(state, pack_id, (known or {}).get(pack_id), jobs, damaged)
        if view is not None:
            views.append(view)
    for _ in range(LOOKS_MOST):
        stale = find_stale(views)
        for place in stale:
            # A damaged file was told of at the first look.
            record = views[place].record
            again = _survey(state, record.pack_id, record, jobs, [])
            views[place] = again or views[place]
        if not stale:
            break
    return sorted(show_once(views), key=_compute_order)


def _survey(
    state: StateReader,
    pack_id: str,
    record: PackRecord | None,
    jobs: Mapping[str, SlurmJob] | None,
    damaged: list[StateError] | None,
) -> PackView | None:
    """Look at one pack; None where it is gone or cannot be read, which is said in `damaged`."""
    try:
        record = record or state.read_pack(pack_id)
        if record is not None:
            return _with_members(state, _look_at(state, record, jobs), damaged)
    except (OSError, StateError) as error:
        problem = explain_unreadable(state.pack_path(pack_id), error)
        if damaged is None:
            raise problem from error
        damaged.append(problem)
    return None


def _look_at(
    state: StateReader, record: PackRecord, jobs: Mapping[str, SlurmJob] | None
) -> PackView:
    path = state.pack_path(record.pack_id)
    job_id = read_slurm_job_id(path) or ""
    slurm_state = _read_slurm_state(state, record, job_id, jobs)
    attempt = read_attempt(path)
    is_requeued = attempt > 0 and slurm_state is SlurmJobState.PENDING
    kill = find_kill(path, attempt) if is_requeued else None
    return PackView(
        record=record,
        job_id=job_id,
        slurm=None
        if state.is_elsewhere(record)
        else find_job_of(jobs or {}, job_id, record.submission),
        slurm_state=slurm_state,
        attempt=attempt,
        is_elsewhere=state.is_elsewhere(record),
        members=(),
        kill=None if kill is None or kill.refusal else kill,
    )


def _compute_order(view: PackView) -> tuple[bool, bool, int, int, int]:
    """By Slurm's job ids and elements, then packs without Slurm, then those without an id yet."""
    shown, own = (text.removeprefix("L") for text in (view.shown_id, view.own_id))
    is_local = shown != view.shown_id
    return (not shown, is_local, int(shown or 0), int(own or 0), view.record.index)


def _read_slurm_state(
    state: StateReader, record: PackRecord, job_id: str, jobs: Mapping[str, SlurmJob] | None
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
    job = find_job_of(jobs, job_id, record.submission)
    return SlurmJobState.ABSENT if job is None else job.state


def _with_members(state: StateReader, view: PackView, damaged: list[StateError] | None) -> PackView:
    path = str(state.pack_path(view.record.pack_id))
    shown_id = view.shown_id or "?"
    parked = _list_parked(state, view)
    members = []
    for files in list_member_files(path):
        try:
            member = _build_member(state, view, path, shown_id, files)
            if files.number in parked and member.state is MemberState.RUNNING:
                reason = "; ".join(filter(None, (PARKED, member.reason)))
                member = replace(member, reason=reason, is_parked=True)
            members.append(member)
        except StateError as problem:
            if not is_there(files.path):
                # Another pack has just taken it over.
                continue
            # One damaged record says nothing about its neighbours.
            if damaged is None:
                raise
            damaged.append(problem)
    return replace(view, members=tuple(members))


def _list_parked(state: StateReader, view: PackView) -> frozenset[int]:
    """The members of a pack that may run now that are paused until a place is free for them."""
    if view.attempt == 0 or view.slurm_state in _OVER:
        return frozenset()
    # Packs that have ended, all that a report is of, need none of it.
    from slurm_colloc.store.runner_requests import read_degree

    with contextlib.suppress(StateError):
        degree = read_degree(state.pack_path(view.record.pack_id), view.attempt)
        return frozenset() if degree is None else frozenset(degree.parked)
    return frozenset()


def _build_member(
    state: StateReader, view: PackView, path: str, shown_id: str, files: MemberFiles
) -> MemberView:
    spec_path = f"{files.path}/spec.json"
    value = read_json(spec_path)
    if value is None:
        raise StateError(f"{spec_path} is missing")
    try:
        name, wall_limit_s = value["job"]["name"], value["plan"]["wall_limit_s"]
    except (KeyError, TypeError) as error:
        raise StateError(f"{spec_path} is damaged ({error})") from error
    record = read_state(path, files.number, view.attempt, files.names)
    if view.slurm_state is not None and not view.slurm_state.may_have_runner:
        starts_again = view.slurm_state is SlurmJobState.PENDING
        end = find_written_end(path, files.number, record, files.names, starts_again=starts_again)
        record = end or record
    moved_to = None
    if files.is_moved:
        moved_to = read_moved(state.pack_path(view.record.pack_id), files.number)
    is_leaving = files.taker not in ("", view.record.pack_id) and not files.is_cancelled
    effective = effective_state(
        record.state if record else MemberState.PENDING,
        # It goes on in the other pack, whatever becomes of this one.
        SlurmJobState.PENDING if is_leaving else view.slurm_state,
        cancelled=files.is_cancelled,
        moved=moved_to is not None,
        held=files.is_held,
        begun=view.attempt > 0,
        has_ended=record is not None and record.is_final,
    )
    reason, dependency = MOVING, ""
    if not is_leaving:
        reason = _compute_reason(effective, record, view, path, value["job"], is_held=files.is_held)
        if condition := _find_condition(reason, value["job"]):
            reason = f"Dependency on {condition}"
        dependency = condition or ("" if record is None else record.dependency)
    return MemberView(
        member=_name(path, shown_id, files.number, value),
        state=effective,
        record=record,
        reason=reason,
        name=name,
        wall_limit_s=wall_limit_s,
        is_held=files.is_held,
        moved_to=moved_to,
        files=files,
        _value=value,
        dependency=dependency,
    )


def _name(path: str, shown_id: str, number: int, value: Mapping[str, Any]) -> MemberId:
    """As `name_member`, from a spec.json that was read already."""
    job = value["job"]
    joined_as = job.get("own_id", "") if job.get("has_joined") else ""
    home = read_home(path, number)
    if home is None:
        return MemberId(shown_id, number, joined_as)
    return MemberId(home.job, home.number, joined_as)


def _find_condition(reason: str, job: Mapping[str, Any]) -> str:
    """`afterok:4711/3`, where Slurm says Dependency: it only knows the pack of a member."""
    if reason != "Dependency" or not job.get("depends"):
        return ""
    return describe(job["depends"], is_any=bool(job.get("depends_on_any")))


def _compute_reason(
    state: MemberState,
    record: StateRecord | None,
    view: PackView,
    path: str,
    job: Mapping[str, Any],
    *,
    is_held: bool,
) -> str:
    if state is MemberState.PENDING:
        return _compute_waiting_reason(record, view, is_held=is_held)
    if state is MemberState.REQUEUED:
        return "it never started here and was submitted again"
    if state is MemberState.LOST and (record is None or record.state is not state):
        kill = find_kill(path, view.attempt if record is None else record.attempt)
        if kill is not None:
            return f"{kill}; {kill.refusal}" if kill.refusal else str(kill)
        return "its Slurm job is gone, and how it ended is not known"
    if record is not None and record.state is state:
        return record.reason
    if state is MemberState.FAILED and view.attempt == 0:
        outputs = [
            (name, job[name]) for name in ("output", "error") if isinstance(job.get(name), str)
        ]
        missing = find_missing_directories(str(job.get("directory", "")), outputs)
        why = missing[0] if missing else "do the compute nodes see the state directory?"
        return f"Slurm could not start its batch script: {why}"
    return f"its Slurm job: {view.slurm_state.value}" if view.slurm_state else ""


def _compute_waiting_reason(record: StateRecord | None, view: PackView, *, is_held: bool) -> str:
    if is_held:
        # Its runner holds what it must not start yet, see runtime.may_start.
        return _tell_recorded(record) if record is not None and record.dependency else HELD
    if view.slurm is not None and view.slurm_state is SlurmJobState.PENDING:
        return view.slurm.reason
    if view.slurm_state in (SlurmJobState.RUNNING, SlurmJobState.COMPLETING):
        return _tell_recorded(record) or "Degree"
    return ""


def _tell_recorded(record: StateRecord | None) -> str:
    """Why a member waits, or starts again, as its runner has written it down; empty for nothing."""
    if record is None or record.waits is None:
        return "" if record is None else record.reason
    # Most lists have none that is so.
    from slurm_colloc.model.why_not_now import describe_wait

    return describe_wait(record.waits)


# ---- The user's newest submission ----------------------------------------------------------------

SKEW_S = 60.0
"""How far the clocks of a file server and of this machine may be apart."""


def find_last(state: StateReader) -> Selection:
    """The newest submission: a whole job, or the members that joined a pack together.

    Every submission makes a directory in the `members` folder of its pack, so that one look at
    each pack's folder tells where the newest ones can be.

    Raises:
        NotFound: Nothing was submitted yet.
    """
    changed = []
    for pack_id in state.list_all():
        try:
            changed.append((os.stat(f"{state.packs}/{pack_id}/members").st_mtime, pack_id))  # noqa: PTH116
        except OSError:
            continue
    newest: tuple[float, Selection] | None = None
    for changed_at, pack_id in sorted(changed, reverse=True):
        if newest is not None and changed_at < newest[0] - SKEW_S:
            break
        damaged: list[StateError] = []
        for view in survey_packs(state, [pack_id], None, damaged):
            found = None if state.is_of_another(view.record) else _find_newest(view)
            if found is not None and (newest is None or found[0] > newest[0]):
                newest = found
    if newest is None:
        raise NotFound(
            f"there is no submission in {state.root}", hint="csub train.sh makes the first one"
        )
    return newest[1]


def _find_newest(view: PackView) -> tuple[float, Selection] | None:
    """The newest submission of one pack; what csub submitted again by itself is none."""
    if not view.job_id:
        return None
    found = [] if view.record.resubmissions else [
        (view.record.created_at, Selection(view.shown_id))
    ]  # fmt: skip
    for member in view.members:
        # One that was taken over from another submission is of that one.
        if member.spec.joined and member.member.job == view.shown_id:
            chosen = Selection.of(view.shown_id, (member.member.number,))
            found.append((member.spec.joined_at, chosen))
    return max(found, key=lambda entry: entry[0], default=None)
