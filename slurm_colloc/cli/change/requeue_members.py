"""Starting running members again, or whole packs through Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.cli.change.ask_runner import (
    Problems,
    join_names,
    require_here,
    tell_done,
    wake_runner,
)
from slurm_colloc.cli.change.other_gpu_sets import Chosen, list_chosen, list_others
from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import MemberState, Selection, SlurmJobState
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.store.pack.runner_requests import Action, Request, write_request

if TYPE_CHECKING:
    from slurm_colloc.cli.selection import Choice


def requeue(session: Session, choice: Choice | Sequence[Selection]) -> int:
    """Requeue members, or whole packs through Slurm; the exit status.

    Raises:
        NotFound: There is no such pack or member.
        UsageProblem: It waits, has ended, or must not be requeued.
        SlurmError: Slurm did not do it.
    """
    problems = Problems()
    found = session.survey(choice)
    chosen, requeued = list_chosen(found), set[str]()
    for view, members in found:
        with problems.noted():
            require_here(session, view)
            # Its other GPU sets were named, too, and went back into the queue with the first.
            if view.job_id not in requeued:
                _requeue_in(session, view, members, chosen, requeued)
            tell_done("requeued", (member for member in members if not member.is_final))
    return problems.settle()


def _requeue_in(
    session: Session,
    view: PackView,
    members: list[MemberView],
    chosen: Chosen,
    requeued: set[str],
) -> None:
    alive = [member for member in members if not member.is_final]
    if not alive:
        raise UsageProblem(
            f"{join_names(members)}: already ended",
            hint=f"csub retry {view.shown_id} tries again what did not complete",
        )
    fixed = [member for member in alive if member.spec.job.requeue is False]
    if fixed:
        raise UsageProblem(f"{join_names(fixed)}: submitted with --no-requeue")
    if view.slurm_state is None and not view.record.local and session.unreachable is not None:
        raise session.unreachable
    running = [member for member in alive if member.state is not MemberState.PENDING]
    if not running:
        raise UsageProblem(f"{join_names(alive)}: already pending")
    is_all = len(members) == len(view.members) and not view.record.local
    if is_all and not list_others(session, view, chosen):
        if view.record.carried:
            note(f"{view.job_id}: what its members have done is not known here, so all start again")
        # The allocation is given back; members that have ended do not run again.
        session.slurm.requeue(view.job_id)
        if view.job_id:
            requeued.add(view.job_id)
        return
    if view.record.carried:
        raise UsageProblem(
            f"{join_names(running)} cannot be requeued alone: the pack shares no path with this "
            "machine",
            hint=f"csub requeue {view.shown_id} requeues the whole pack",
        )
    if view.slurm_state not in (SlurmJobState.RUNNING, SlurmJobState.SUSPENDED):
        raise UsageProblem(f"{join_names(running)}: the pack is ending")
    path = session.state.pack_path(view.record.pack_id)
    for member in running:
        number = member.place
        write_request(path, Request(Action.REQUEUE, number, reason="csub requeue"))
    wake_runner(session, view, join_names(running))
