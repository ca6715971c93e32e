"""Ending members: TERM first, KILL after KillWait."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.cli.change.ask_runner import (
    Problems,
    require_here,
    signal_runner,
    tell_done,
    wake_runner,
)
from slurm_colloc.cli.change.other_gpu_sets import list_chosen, list_others
from slurm_colloc.cli.session import Session, freeze, note, say
from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.model.member import Selection, SlurmJobState, is_guest
from slurm_colloc.model.sbatch.quantities import format_elapsed
from slurm_colloc.report.lines.member_groups import render_lines
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.queue_rows import compute_elapsed_s
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.emptied_pack import being_cancelled
from slurm_colloc.store.pack.member_holds import cancel_left, was_left
from slurm_colloc.store.pack.member_states import remove_environment
from slurm_colloc.store.pack.pack_directory import list_members
from slurm_colloc.store.pack.runner_requests import Action, Request, write_request
from slurm_colloc.store.pack.take_over import withdraw_moving
from slurm_colloc.submission.upkeep.ended_packs import OVER

if TYPE_CHECKING:
    from slurm_colloc.cli.selection import Choice

LOCK_WAIT_S = 10.0

PACKS_AT_ONCE = 200
"""So many packs are locked and cancelled by one scancel: each takes a descriptor."""

LOOKS_MOST = 3
"""How often members are followed that just go from one pack to another."""


def cancel(session: Session, selections: Choice | Sequence[Selection], *, yes: bool = False) -> int:
    """Cancel members or whole submissions; the exit status.

    Args:
        session: The session.
        selections: Which members.
        yes: Do not ask, also on a terminal.

    Raises:
        NotFound: There is no such pack or member.
        CollocError: One could not be cancelled; all others were.
    """
    found = session.survey(selections)
    doomed = [(view, [m for m in members if not m.is_final]) for view, members in found]
    asked = not yes and is_terminal() and must_ask(doomed)
    if asked:
        if not ask(doomed):
            note("nothing was cancelled")
            return 1
        # Only what was shown: another member may have joined meanwhile.
        found = session.survey(freeze(doomed))
    problems = Problems()
    doomed = [(view, [m for m in members if not m.is_final]) for view, members in found]
    _cancel_found(session, found, problems, only_these=asked)
    for _ in range(LOOKS_MOST):
        strayed = list_strayed(found)
        if not strayed:
            break
        found = session.survey(strayed)
        for view, members in found:
            _cancel_members(session, view, [m for m in members if not m.is_final], problems)
    status = problems.settle()
    if status == 0:
        tell_done("cancelled", (member for _, members in doomed for member in members))
    return status


def _cancel_found(
    session: Session,
    found: Sequence[tuple[PackView, Sequence[MemberView]]],
    problems: Problems,
    *,
    only_these: bool,
) -> None:
    whole = []
    for view, members in found:
        alive = [member for member in members if not member.is_final]
        if not alive:
            note(f"{', '.join(str(m.member) for m in members)}: already ended")
            continue
        with problems.noted():
            require_here(session, view)
            if len(alive) < sum(not member.is_final for member in view.members):
                _cancel_members(session, view, alive, problems)
            elif _is_over(view) or view.record.local:
                _cancel_without_slurm(session, view)
            elif view.slurm_state is None and session.unreachable is not None:
                raise session.unreachable
            else:
                whole.append(view)
    _cancel_whole(session, whole, problems, only_these=only_these)


def _cancel_whole(
    session: Session, views: Sequence[PackView], problems: Problems, *, only_these: bool
) -> None:
    chosen = list_chosen([(view, view.members) for view in views])
    whole: list[PackView] = []
    left: list[PackView] = []
    for view in views:
        with problems.noted():
            others = list_others(session, view, chosen) if view.record.gpu_sets else []
            (left if any(not other.is_final for other in others) else whole).append(view)
    for start in range(0, len(whole), PACKS_AT_ONCE):
        some = whole[start : start + PACKS_AT_ONCE]
        for view in _cancel_packs(session, some, problems, only_these=only_these):
            # One by one, so that each has its own lock and its own answer.
            if view.record.gpu_sets:
                left.append(view)
            else:
                left += _cancel_packs(session, [view], problems, only_these=only_these)
    for view in left:
        _cancel_members(session, view, _list_alive(view), problems)


def _cancel_without_slurm(session: Session, view: PackView) -> None:
    path = session.state.pack_path(view.record.pack_id)
    if view.record.local and not _is_over(view):
        _cancel_local_pack(view, path)
        return
    for member in _list_alive(view):
        cancel_left(path, member.place)


def _cancel_packs(
    session: Session, views: Sequence[PackView], problems: Problems, *, only_these: bool
) -> list[PackView]:
    """Cancel the Slurm jobs of packs in one call of scancel.

    Args:
        session: The session.
        views: The packs.
        problems: Takes what goes wrong.
        only_these: What has joined them since is not meant.

    Returns:
        Those that are still to be cancelled: another csub is at them, members have come that are
        not to end, or Slurm refused one of several.
    """
    left: list[PackView] = []
    found: list[PackView] = []
    # Joining needs the lock of a pack, so no member joins between the look and scancel; so does
    # taking over.
    try:
        with contextlib.ExitStack() as held:
            for view in views:
                path = session.state.pack_path(view.record.pack_id)
                # Those that another pack is taking over do not end with this one.
                leaving = [member for member in _list_alive(view) if member.files.taker]
                _cancel_members(session, view, leaving, problems)
                # Who holds some locks waits for none.
                patience_s = LOCK_WAIT_S if len(views) == 1 else 0.0
                locked = held.enter_context(hold_lock(path / "lock", patience_s))
                known = {member.place for member in view.members}
                come = [number for number in list_members(path) if number not in known]
                # One that has joined ends with the pack; one of another submission does not.
                is_kept = bool(come) and (only_these or any(map(is_guest, come)))
                is_other = not (locked or locked.problem or len(views) == 1)
                (left if is_kept or is_other else found).append(view)
            # A Slurm job ends with all its GPU sets.
            kept = {view.job_id for view in left}
            left += [view for view in found if view.job_id in kept]
            ending = [view for view in found if view.job_id not in kept]
            for view in ending:
                held.enter_context(being_cancelled(session.state.pack_path(view.record.pack_id)))
            if ending:
                session.slurm.cancel(*dict.fromkeys(view.job_id for view in ending))
    except SlurmError:
        if len(views) > 1:
            return list(views)
        with problems.noted(views[0].job_id):
            raise
    return left


def _cancel_members(
    session: Session, view: PackView, members: Sequence[MemberView], problems: Problems
) -> None:
    for member in members:
        with problems.noted():
            _cancel_member(session, view, member)


def _cancel_local_pack(view: PackView, path: Path) -> None:
    for member in view.members:
        inbox.withdraw(str(path), member.place)
    signal_runner(path, signal.SIGTERM)
    for member in _list_alive(view):
        _request(path, member)


def _list_alive(view: PackView) -> list[MemberView]:
    return [member for member in view.members if not member.is_final]


def _cancel_member(session: Session, view: PackView, member: MemberView) -> None:
    if view.record.carried:
        raise UsageProblem(
            f"{member.member} cannot be cancelled alone: its pack shares no path with this machine",
            hint=f"scancel --signal=TERM {view.job_id}.STEP ends its step, squeue -s lists steps",
        )
    path = session.state.pack_path(view.record.pack_id)
    if was_left(path, member.place) or (member.is_held and _is_over(view)):
        cancel_left(path, member.place)
        return
    number = member.place
    if inbox.withdraw(str(path), number) or withdraw_moving(str(path), number):
        remove_environment(path, number)
        return
    _request(path, member)
    wake_runner(session, view, member.member)


def list_strayed(
    found: Sequence[tuple[PackView, Sequence[MemberView]]],
) -> list[Selection]:
    """The members that another pack has taken over since they were looked at."""
    gone = [
        (view, [m for m in members if not m.is_final and not is_there(m.files.path)])
        for view, members in found
    ]
    return freeze([(view, members) for view, members in gone if members])


def _is_over(view: PackView) -> bool:
    """It has only held members left: no runner and no Slurm job."""
    return view.slurm_state in OVER or view.slurm_state is SlurmJobState.ABSENT


def _request(path: Path, member: MemberView) -> None:
    write_request(path, Request(Action.CANCEL, member.place, reason="csub cancel"))


Found = Sequence[tuple[PackView, Sequence[MemberView]]]


def must_ask(found: Found) -> bool:
    """A pack holds jobs of several submissions, and more than one of them would end."""
    return any(len(list_submissions(members)) > 1 for _, members in found)


def list_submissions(members: Sequence[MemberView]) -> set[str]:
    """The submissions that the members are of: a joiner came by one of its own."""
    return {member.spec.joined or member.member.job for member in members}


def is_terminal() -> bool:
    """Somebody is there who can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def ask(found: Found) -> bool:
    """Show what would end, and ask; True for yes."""
    rows, submissions = [], set()
    now = time.time()
    for _, members in found:
        submissions |= list_submissions(members)
        rows += [
            (
                str(member.member),
                member.name,
                member.state.value,
                format_elapsed(compute_elapsed_s(member, now) or 0),
                " ".join([member.spec.job.script_name, *member.spec.job.arguments]),
            )
            for member in members
        ]
    say(render_lines(("MEMBER", "NAME", "STATE", "TIME", "SCRIPT"), rows))
    sys.stdout.write(f"End these {len(rows)} jobs of {len(submissions)} submissions? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
