"""Ending members: TERM first, KILL after KillWait.

Also: reaching the runner of a pack, wherever it runs; the other GPU sets of a Slurm job: what Slurm
does to the job is done to their members, too; starting running members again, or whole packs
through Slurm.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import CollocError, SlurmError, SlurmUnreachable, StateError, UsageProblem
from slurm_colloc.host.system.node_processes import ProcessId, is_alive
from slurm_colloc.model.member import MemberState, Selection, SlurmJobState, is_guest
from slurm_colloc.model.quantities import format_elapsed
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import compute_elapsed_s
from slurm_colloc.report.terminal_tables import render_lines
from slurm_colloc.session.session import Session, freeze, note, say
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import list_gpu_set_packs
from slurm_colloc.store.atomic_files import hold_lock, is_there
from slurm_colloc.store.inbox import withdraw_moving
from slurm_colloc.store.member_states import (
    being_cancelled,
    cancel_left,
    remove_environment,
    was_left,
)
from slurm_colloc.store.pack_directory import list_members, read_spec
from slurm_colloc.store.runner_requests import Action, Request, write_request
from slurm_colloc.store.written_ends import is_of_another_host, read_runner
from slurm_colloc.submission.upkeep.ended_packs import OVER, list_successors

if TYPE_CHECKING:
    from slurm_colloc.session.selection import Choice


# ---- Reaching the runner of a pack, wherever it runs ---------------------------------------------


def wake_runner(session: Session, view: PackView, about: object) -> None:
    """Let a running pack's runner look at once; without it, it looks within a second.

    Args:
        session: The session.
        view: The pack.
        about: What is named where Slurm does not do it.
    """
    if view.record.local:
        signal_runner(session.state.pack_path(view.record.pack_id), signal.SIGURG)
    elif view.slurm_state is SlurmJobState.RUNNING:
        try:
            session.slurm.wake_batch_script(view.job_id)
        except SlurmError as error:
            note(f"{about}: {error}")


def signal_runner(path: Path, number: int) -> None:
    """Signal the runner of a pack without Slurm, if this is its machine and it still runs.

    Elsewhere it is not reached by a signal: it looks for requests within a second.
    """
    with contextlib.suppress(OSError, StateError):
        runner = read_runner(path)
        if runner is None or is_of_another_host(path):
            return
        if is_alive(ProcessId(runner.pid, runner.start_ticks)):
            os.kill(runner.pid, number)  # noqa: TID251 - its own


def require_here(session: Session, view: PackView) -> None:
    """See that a pack's Slurm job is one of this cluster: another may have a job of the same id.

    Raises:
        SlurmUnreachable: It is not known which cluster this is.
        UsageProblem: The job is one of another cluster, or it is not known of which.
    """
    if not view.is_elsewhere:
        return
    if not session.state.cluster:
        raise SlurmUnreachable(
            f"{view.shown_id}: cannot find out which cluster this is",
            hint="nothing was changed; try again when scontrol show config answers here",
        )
    raise UsageProblem(
        f"{view.shown_id} is a job of {view.where_to_ask}, and this is {session.state.cluster}",
        hint="call csub on one of its login nodes",
    )


def join_names(members: list[MemberView]) -> str:
    """`4711/1, 4711/2`."""
    return ", ".join(str(member.member) for member in members)


def tell_done(what: str, members: Iterable[MemberView]) -> None:
    """Say on a terminal what a command has done, as in `cancelled: 4711/1-4`."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    names = [member.member for member in members]
    chosen = Selection.of_each(name for name in names if not name.joined_as)
    if told := [*map(str, chosen), *(name.joined_as for name in names if name.joined_as)]:
        note(f"{what}: {', '.join(told)}")


class Problems:
    """What could not be done for some of the members; the others are gone on with."""

    def __init__(self) -> None:
        self._found: list[CollocError] = []

    @contextlib.contextmanager
    def noted(self, about: str = "") -> Iterator[None]:
        """Note what goes wrong in the body, once for each sentence, and go on.

        Args:
            about: What the sentence is to name; empty where it names it already.
        """
        try:
            yield
        except CollocError as problem:
            if about not in problem.message:
                problem.message = f"{about}: {problem.message}"
            if str(problem) not in map(str, self._found):
                self._found.append(problem)

    def settle(self) -> int:
        """The exit status: 0, or the first problem's; they are told.

        Raises:
            CollocError: There was one.
        """
        if len(self._found) == 1:
            raise self._found[0]
        for problem in self._found:
            note(f"error: {problem}")
        return self._found[0].exit_code if self._found else 0


# ----
# The other GPU sets of a Slurm job: what Slurm does to the job is done to their members, too.

Chosen = Mapping[str, Collection[int]]
"""By pack id the numbers of the members that were named."""


def list_chosen(found: Sequence[tuple[PackView, Sequence[MemberView]]]) -> dict[str, set[int]]:
    """The members that a call names, by pack."""
    return {view.record.pack_id: {member.place for member in members} for view, members in found}


def list_others(session: Session, view: PackView, chosen: Chosen) -> list[MemberView]:
    """The members of the other GPU sets of a pack's Slurm job that were not named.

    Args:
        session: The session.
        view: The pack.
        chosen: What was named.

    Raises:
        StateError: Of one of the sets it cannot be read who is in it.
    """
    own = view.record.pack_id
    names = [name for name in list_gpu_set_packs(view.record) if name != own]
    damaged: list[StateError] = []
    others = survey_packs(session.state, names, None, damaged)
    if damaged:
        raise damaged[0]
    return [
        member
        for other in others
        for member in other.members
        if member.place not in chosen.get(other.record.pack_id, ())
    ]


# ---- Ending members: TERM first, KILL after KillWait ---------------------------------------------

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
    # Where a pack holds jobs of several submissions, more than one of them may end.
    several = any(len(list_submissions(members)) > 1 for _, members in doomed)
    asked = not yes and is_terminal() and several
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
        for member in _list_alive(view):
            _cancel_member(session, view, member)
        signal_runner(path, signal.SIGTERM)
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
                # A job that has joined as a member of the pack alone ends with it.
                is_kept = bool(come) and (only_these or any(_is_own(path, n) for n in come))
                is_other = not (locked or locked.problem or len(views) == 1)
                (left if is_kept or is_other else found).append(view)
            # A Slurm job ends with all its GPU sets.
            kept = {view.job_id for view in left}
            left += [view for view in found if view.job_id in kept]
            ending = [view for view in found if view.job_id not in kept]
            for view in ending:
                held.enter_context(being_cancelled(session.state.pack_path(view.record.pack_id)))
            if ending:
                ids = [job for view in ending for job in _list_jobs(session, view)]
                session.slurm.cancel(*dict.fromkeys(ids))
    except SlurmError:
        if len(views) > 1:
            return list(views)
        with problems.noted(views[0].job_id):
            raise
    return left


def _is_own(path: Path, number: int) -> bool:
    """Whether a member is of another submission than its pack, or is one by itself."""
    return is_guest(number) or bool(read_spec(path, number).joined_as)


def _list_jobs(session: Session, view: PackView) -> list[str]:
    """The Slurm jobs of a pack: of a chain also those that are to follow."""
    if not view.record.chain:
        return [view.job_id]
    coming, problem = list_successors(
        session.state.pack_path(view.record.pack_id),
        view.record,
        view.job_id,
        session.slurm.list_jobs(),
    )
    if problem:
        told = "is cancelled, with the next link that Slurm shows"
        note(f"{view.shown_id} {told}: {problem}")
    # Those first: a link whose predecessor ends would take its turn.
    return [*coming, view.job_id]


def _cancel_members(
    session: Session, view: PackView, members: Sequence[MemberView], problems: Problems
) -> None:
    for member in members:
        with problems.noted():
            _cancel_member(session, view, member)


def _list_alive(view: PackView) -> list[MemberView]:
    return [member for member in view.members if not member.is_final]


def _cancel_member(session: Session, view: PackView, member: MemberView) -> None:
    path = session.state.pack_path(view.record.pack_id)
    if was_left(path, member.place) or (member.is_held and _is_over(view)):
        cancel_left(path, member.place)
        return
    number = member.place
    if inbox.withdraw(str(path), number) or withdraw_moving(str(path), number):
        remove_environment(path, number)
        return
    write_request(path, Request(Action.CANCEL, number, reason="csub cancel"))
    if was_left(path, number):
        # Its runner has left it just now, and looked for requests before this one was there.
        cancel_left(path, number)
        return
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


Found = Sequence[tuple[PackView, Sequence[MemberView]]]


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


# ---- Starting running members again, or whole packs through Slurm --------------------------------


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
        # The allocation is given back; members that have ended do not run again.
        session.slurm.requeue(view.job_id)
        if view.job_id:
            requeued.add(view.job_id)
        return
    if view.slurm_state not in (SlurmJobState.RUNNING, SlurmJobState.SUSPENDED):
        raise UsageProblem(f"{join_names(running)}: the pack is ending")
    path = session.state.pack_path(view.record.pack_id)
    for member in running:
        number = member.place
        write_request(path, Request(Action.REQUEUE, number, reason="csub requeue"))
    wake_runner(session, view, join_names(running))
