"""Ending members: TERM first, KILL after KillWait."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.model.member import Selection, SlurmJobState
from slurm_colloc.report.survey import MemberView, PackView
from slurm_colloc.store import inbox
from slurm_colloc.store.requests import Action, Request, write_request


def cancel(session: Session, selections: Sequence[Selection]) -> int:
    """Cancel members or whole submissions; the exit status.

    Raises:
        NotFound: There is no such pack or member.
        SlurmError: Slurm did not do it.
    """
    for view, members in session.survey(selections):
        alive = [member for member in members if not member.is_final]
        if not alive:
            note(f"{', '.join(str(m.member) for m in members)}: already ended")
            continue
        if len(alive) == sum(not member.is_final for member in view.members):
            _cancel_pack(session, view)
        else:
            for member in alive:
                _cancel_member(session, view, member)
    return 0


def _cancel_pack(session: Session, view: PackView) -> None:
    if not view.record.local:
        if view.slurm_state is None and session.unreachable is not None:
            raise session.unreachable
        session.slurm.cancel(view.job_id)
        return
    path = session.state.pack_path(view.record.pack_id)
    for member in view.members:
        inbox.withdraw(str(path), member.member.number)
    _signal_runner(path, signal.SIGTERM)
    for member in view.members:
        if not member.is_final:
            _request(path, member)


def _cancel_member(session: Session, view: PackView, member: MemberView) -> None:
    if view.record.carried:
        raise UsageProblem(
            f"{member.member} cannot be cancelled alone: its pack shares no path with this machine",
            hint=f"scancel --signal=TERM {view.job_id}.STEP ends its step, squeue -s lists steps",
        )
    path = session.state.pack_path(view.record.pack_id)
    if inbox.withdraw(str(path), member.member.number):
        return
    _request(path, member)
    if view.record.local:
        _signal_runner(path, signal.SIGURG)
    elif view.slurm_state is SlurmJobState.RUNNING:
        try:
            session.slurm.wake_batch_script(view.job_id)
        except SlurmError as error:
            # The runner looks by itself within a second.
            note(f"{member.member}: {error}")


def _request(path: Path, member: MemberView) -> None:
    write_request(path, Request(Action.CANCEL, member.member.number, reason="csub cancel"))


def _signal_runner(path: Path, number: int) -> None:
    try:
        os.kill(int((path / "runner_pid").read_text()), number)
    except (OSError, ValueError):
        return
