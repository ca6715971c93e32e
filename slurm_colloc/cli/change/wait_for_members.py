"""Waiting for members to end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slurm_colloc.cli.await_summaries import await_summaries
from slurm_colloc.cli.session import Session, freeze
from slurm_colloc.model.member import MemberState, Selection
from slurm_colloc.model.selection import Choice
from slurm_colloc.report.member_survey import MemberView, PackView
from slurm_colloc.store.all_packs import State

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


def wait_for(session: Session, chosen: Choice | Sequence[Selection]) -> int:
    """Wait until all chosen members have ended; the worst one's exit status.

    What the words mean is settled at the first look: `all` are those that had not ended then.

    Raises:
        NotFound: There is no such pack or member.
    """
    pause = FIRST_PAUSE_S
    wanted: Choice | Sequence[Selection] = chosen
    while True:
        found = session.survey(wanted)
        wanted = freeze(found)
        members = [member for _, selected in found for member in selected]
        if all(member.is_final for member in members):
            _await_summaries(session, [view for view, _ in found])
            return max((compute_status(member) for member in members), default=0)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, pause * 1.2)


def _await_summaries(session: Session, views: Sequence[PackView]) -> None:
    """What is learned from packs that have ended is there for the call that follows."""
    ended = [
        view.record.pack_id for view in views if all(member.is_final for member in view.members)
    ]
    if isinstance(session.state, State):
        await_summaries(session.state, session.settings, ended, session.refresh)


def compute_status(member: MemberView) -> int:
    """A member's exit status as a shell would give it; 1 where its end was not seen."""
    if member.state is MemberState.COMPLETED:
        return 0
    code = member.record.exit_code if member.record else None
    status = code.shell_status if code else 0
    return status or 1
