"""Ending members: TERM first, KILL after KillWait."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.cli import confirming
from slurm_colloc.cli.runners import signal_runner, wake_runner
from slurm_colloc.cli.session import Session, freeze, note
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import Selection, SlurmJobState
from slurm_colloc.report.survey import MemberView, PackView
from slurm_colloc.store import inbox
from slurm_colloc.store.directory import list_members
from slurm_colloc.store.holds import cancel_left, was_left
from slurm_colloc.store.locks import hold_lock
from slurm_colloc.store.requests import Action, Request, write_request
from slurm_colloc.store.states import remove_environment
from slurm_colloc.submission.endings import OVER

if TYPE_CHECKING:
    from slurm_colloc.model.selection import Choice

LOCK_WAIT_S = 10.0


def cancel(session: Session, selections: Choice | Sequence[Selection], *, yes: bool = False) -> int:
    """Cancel members or whole submissions; the exit status.

    Args:
        session: The session.
        selections: Which members.
        yes: Do not ask, also on a terminal.

    Raises:
        NotFound: There is no such pack or member.
        SlurmError: Slurm did not do it.
    """
    found = session.survey(selections)
    doomed = [(view, [m for m in members if not m.is_final]) for view, members in found]
    asked = not yes and confirming.is_terminal() and confirming.must_ask(doomed)
    if asked:
        if not confirming.ask(doomed):
            note("nothing was cancelled")
            return 1
        # Only what was shown: somebody may have joined meanwhile.
        found = session.survey(freeze(doomed))
    for view, members in found:
        alive = [member for member in members if not member.is_final]
        if not alive:
            note(f"{', '.join(str(m.member) for m in members)}: already ended")
            continue
        if len(alive) == sum(not member.is_final for member in view.members):
            _cancel_pack(session, view, only_these=asked)
        else:
            for member in alive:
                _cancel_member(session, view, member)
    return 0


def _cancel_pack(session: Session, view: PackView, *, only_these: bool) -> None:
    path = session.state.pack_path(view.record.pack_id)
    if view.slurm_state is None and not view.record.local and session.unreachable is not None:
        raise session.unreachable
    if _is_over(view):
        for member in _list_alive(view):
            cancel_left(path, member.member.number)
    elif view.record.local:
        _cancel_local_pack(view, path)
    else:
        # Joining needs this lock, so nobody joins between the look and scancel.
        with hold_lock(path / "lock", LOCK_WAIT_S):
            if not only_these or len(list_members(path)) == len(view.members):
                session.slurm.cancel(view.job_id)
                return
        for member in _list_alive(view):
            _cancel_member(session, view, member)


def _cancel_local_pack(view: PackView, path: Path) -> None:
    for member in view.members:
        inbox.withdraw(str(path), member.member.number)
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
    if was_left(path, member.member.number) or (member.is_held and _is_over(view)):
        cancel_left(path, member.member.number)
        return
    if inbox.withdraw(str(path), member.member.number):
        remove_environment(path, member.member.number)
        return
    _request(path, member)
    wake_runner(session, view, member.member)


def _is_over(view: PackView) -> bool:
    """Only held members are left of it: no runner and no Slurm job."""
    return view.slurm_state in OVER or view.slurm_state is SlurmJobState.ABSENT


def _request(path: Path, member: MemberView) -> None:
    write_request(path, Request(Action.CANCEL, member.member.number, reason="csub cancel"))
