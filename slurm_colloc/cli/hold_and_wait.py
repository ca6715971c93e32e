"""`csub hold` and `csub release`: members that must not start yet.

Also: waiting for members to end.

A member is held by a mark in the state directory, which its runner looks at
(store.member_states). Where nothing else of a pack that waits for Slurm is left, the Slurm job
is held too, so that no GPU is allocated for nothing. A job that Slurm holds after a fault of a node
is released as a whole.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError, SlurmRefused, StateError, UsageProblem
from slurm_colloc.model.member import MemberState, Selection, SlurmJobState
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.waiting_reasons import find_reason
from slurm_colloc.session.await_summaries import await_summaries
from slurm_colloc.session.cancel_and_requeue import (
    LOOKS_MOST,
    Chosen,
    Problems,
    join_names,
    list_chosen,
    list_others,
    list_strayed,
    require_here,
    tell_done,
    wake_runner,
)
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, freeze, note
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.member_states import (
    forget_hold,
    may_have_begun,
    read_attempt,
    read_state,
    remove_held,
    write_held,
)
from slurm_colloc.store.pack_directory import is_local_alive, list_members, read_moved

LOCK_WAIT_S = 10.0
RUNNER_ENDS_S = 10.0
POLL_S = 0.1

_ALIVE = (SlurmJobState.PENDING, SlurmJobState.RUNNING, SlurmJobState.SUSPENDED)


def hold(session: Session, choice: Choice | Sequence[Selection]) -> int:
    """Hold members; the exit status.

    Raises:
        NotFound: There is no such pack or member.
        UsageProblem: It runs or has ended.
        SlurmError: Slurm did not do it.
    """
    problems = Problems()
    chosen: Choice | Sequence[Selection] = choice
    for _ in range(LOOKS_MOST):
        strayed = []
        for view, members in session.survey(chosen):
            with problems.noted():
                require_here(session, view)
                try:
                    _hold_in(session, view, members)
                except StateError:
                    gone = list_strayed([(view, members)])
                    if not gone:
                        raise
                    # Another pack has just taken one over: all of them are looked for again.
                    strayed += freeze([(view, members)])
        if not strayed:
            break
        chosen = strayed
    return problems.settle()


def release(session: Session, choice: Choice | Sequence[Selection]) -> int:
    """Release members; the exit status.

    Raises:
        NotFound: There is no such pack or member.
        UsageProblem: It has ended.
        SlurmError: Slurm did not do it.
    """
    problems = Problems()
    found = session.survey(choice)
    chosen = list_chosen(found)
    for view, members in found:
        with problems.noted():
            require_here(session, view)
            _release_in(session, view, members, chosen)
            tell_done("released", (member for member in members if not member.is_final))
    return problems.settle()


# -- holding ----------------------------------------------------------------------------------


def _hold_in(session: Session, view: PackView, members: list[MemberView]) -> None:
    alive = _require_alive(members)
    path = session.state.pack_path(view.record.pack_id)
    running = [member for member in alive if member.state is not MemberState.PENDING]
    held = []
    for member in alive:
        if member in running:
            continue
        number = member.place
        was_held = member.is_held
        write_held(path, number)
        if not was_held and _has_begun(view, path, number):
            remove_held(path, number)
            running.append(member)
        else:
            held.append(member)
    if running:
        text = f"{join_names(running)}: a running job cannot be held"
        hint = "csub requeue puts it back into the queue, csub cancel ends it"
        if not held:
            raise UsageProblem(text, hint=hint)
        note(text)
    _hold_job(session, view, held)
    tell_done("held", held)


def _has_begun(view: PackView, path: Path, number: int) -> bool:
    """Its runner has begun to start it before it could see that it is held."""
    attempt = read_attempt(path)
    if attempt == 0:
        return False
    record = read_state(path, number, attempt)
    if record is not None and record.state is not MemberState.PENDING:
        # A pack that waits to be started again starts its unfinished members anew.
        waits_again = view.slurm_state is SlurmJobState.PENDING and attempt == view.attempt
        return record.attempt == attempt and not waits_again
    return may_have_begun(path, number, attempt, record.starts if record else 0)


def _hold_job(session: Session, view: PackView, held: list[MemberView]) -> None:
    """Hold the Slurm job of a pack that waits, where nothing in it may start any more."""
    numbers = {member.place for member in held}
    others = [m for m in view.members if not m.is_final and m.place not in numbers]
    if view.record.local or any(not member.is_held for member in others):
        return
    if view.slurm_state is None and session.unreachable is not None:
        raise session.unreachable
    if view.slurm_state is not SlurmJobState.PENDING or not view.job_id:
        return
    if any(not (m.is_final or m.is_held) for m in list_others(session, view, {})):
        return
    path = session.state.pack_path(view.record.pack_id)
    try:
        # Joining needs this lock: no member comes in that is not held.
        with hold_lock(path / "lock", LOCK_WAIT_S):
            if len(list_members(path)) == len(view.members):
                session.slurm.hold(view.job_id)
    except SlurmRefused:
        fields = session.slurm.read_job(view.job_id)
        if fields and SlurmJobState.parse(fields.get("JobState", "")) is SlurmJobState.PENDING:
            raise
        # It has just started; its runner finds only held members and ends.
    except SlurmError as error:
        error.message = f"{join_names(held)}: held, but not their Slurm job: {error.message}"
        raise


# -- releasing --------------------------------------------------------------------------------


def _release_in(
    session: Session, view: PackView, members: list[MemberView], chosen: Chosen
) -> None:
    alive = _require_alive(members)
    if view.slurm_state is None and not view.record.local and session.unreachable is not None:
        raise session.unreachable
    waiting = [member for member in alive if member.state is MemberState.PENDING]
    for member in alive:
        if member not in waiting:
            note(f"{member.member} is running, not held")
    if not waiting:
        return
    if view.slurm_state is SlurmJobState.PENDING:
        _release_in_pending(session, view, waiting, chosen)
    else:
        _release_in_started(session, view, waiting)


def _release_in_pending(
    session: Session, view: PackView, waiting: list[MemberView], chosen: Chosen
) -> None:
    path = session.state.pack_path(view.record.pack_id)
    word = "" if view.slurm is None else view.slurm.reason
    is_job_held = word.startswith("JobHeld")
    reason = find_reason(word)
    # Slurm holds it for a reason of its own, so this concerns all of its members.
    is_stuck = reason is not None and reason.needs_release
    for member in waiting:
        if not (member.is_held or is_job_held or is_stuck):
            note(f"{member.member} is not held")
    if is_job_held:
        numbers = {member.place for member in waiting}
        for other in view.members:
            if not other.is_final and other.place not in numbers:
                # Held with the whole pack until now, from now on by itself.
                write_held(path, other.place)
        for other in list_others(session, view, chosen):
            if not other.is_final:
                write_held(Path(other.files.path).parent.parent, other.place)
    left = [member for member in waiting if not remove_held(path, member.place)]
    if is_job_held or is_stuck:
        session.slurm.release(view.job_id)
    if left:
        _start_elsewhere(session, view, left)


def _release_in_started(session: Session, view: PackView, waiting: list[MemberView]) -> None:
    path = session.state.pack_path(view.record.pack_id)
    is_over = not is_local_alive(path) if view.record.local else view.slurm_state not in _ALIVE
    left = []
    for member in waiting:
        if not member.is_held:
            note(f"{member.member} is not held")
        elif is_over or not remove_held(path, member.place):
            left.append(member)
    if left:
        _start_elsewhere(session, view, left)
    else:
        wake_runner(session, view, join_names(waiting))


def _start_elsewhere(session: Session, view: PackView, left: list[MemberView]) -> None:
    """Their pack has ended without them: they get a new one."""
    numbers = [member.place for member in left]
    if view.record.local:
        from slurm_colloc.submission.submit import restart_local

        deadline = time.monotonic() + RUNNER_ENDS_S
        while not restart_local(
            session.own_state, view.record, view.job_id, session.settings, numbers
        ):
            if time.monotonic() > deadline:
                raise StateError(
                    f"{join_names(left)}: the pack is ending", hint="try again in a moment"
                )
            time.sleep(POLL_S)
        return
    from slurm_colloc.submission.upkeep.resubmit_members import resubmit

    path = session.state.pack_path(view.record.pack_id)
    with hold_lock(path / "lock", LOCK_WAIT_S) as locked:
        if not locked:
            raise StateError(
                f"{join_names(left)}: another csub is changing their pack",
                hint="try again in a moment",
            )
        numbers = [number for number in numbers if read_moved(path, number) is None]
        if not numbers:
            return
        job_id = resubmit(
            session.own_state,
            session.slurm,
            session.settings,
            view.record.pack_id,
            numbers,
            counts=False,
        )
        for number in numbers:
            forget_hold(path, number)
    note(f"{join_names(left)}: the pack has ended, submitted again as job {job_id}")


# -- both -------------------------------------------------------------------------------------


def _require_alive(members: list[MemberView]) -> list[MemberView]:
    alive = [member for member in members if not member.is_final]
    if not alive:
        raise UsageProblem(f"{join_names(members)}: already ended")
    return alive


# ---- Waiting for members to end ------------------------------------------------------------------

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


def wait_for(
    session: Session,
    chosen: Choice | Sequence[Selection],
    *,
    tells: bool = False,
    as_sbatch: bool = False,
) -> int:
    """Wait until all chosen members have ended; the worst one's exit status.

    What the words mean is settled at the first look: `all` are those that had not ended then.

    Args:
        session: The call's.
        chosen: The members.
        tells: Say on standard error whose the exit status is, where it is not 0. It may be one
            that csub itself ends with.
        as_sbatch: The exit status is that of `sbatch --wait`, see compute_sbatch_status.

    Raises:
        NotFound: There is no such pack or member.
    """
    try:
        return _wait_for(session, chosen, tells=tells, as_sbatch=as_sbatch)
    except KeyboardInterrupt:
        # A user may take an interrupt for a cancel, as of srun.
        note("no longer waiting; the jobs go on: csub queue shows them, csub cancel ends them")
        raise


def _wait_for(
    session: Session, chosen: Choice | Sequence[Selection], *, tells: bool, as_sbatch: bool
) -> int:
    pause = FIRST_PAUSE_S
    wanted: Choice | Sequence[Selection] = chosen
    line = LiveLine()
    while True:
        found = session.survey(wanted)
        wanted = freeze(found)
        members = list_last_tries([member for _, selected in found for member in selected])
        line.show(describe_progress(members))
        if all(member.is_final for member in members):
            line.clear()
            if line.is_seen and members:
                note(describe_ends(members))
            _await_summaries(session, [view for view, _ in found])
            measure = compute_sbatch_status if as_sbatch else compute_status
            worst = max(members, key=measure, default=None)
            status = measure(worst) if worst is not None else 0
            if tells and worst is not None and status:
                others = sum(compute_status(member) > 0 for member in members) - 1
                note(_describe_worst(worst, status, others))
            return status
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, pause * 1.2)


class LiveLine:
    """A line at the foot of a terminal that is written anew; nothing where there is no terminal.

    Attributes:
        is_seen: There is a terminal.
    """

    def __init__(self) -> None:
        self.is_seen = sys.stderr is not None and sys.stderr.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Write the line, in place of the one before."""
        text = text[: shutil.get_terminal_size().columns - 1]
        if self.is_seen and text != self._shown:
            sys.stderr.write(f"{_CLEAR}{text}")
            sys.stderr.flush()
            self._shown = text

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


def list_last_tries(members: Sequence[MemberView]) -> list[MemberView]:
    """Of members and their tries the last ones: they say what has become of each."""
    last: dict[str, MemberView] = {}
    for member in sorted(members, key=lambda m: m.member):
        last[member.retry_of or str(member.member)] = member
    return list(last.values())


_CLEAR = "\r\x1b[K"
_NAMED_MOST = 5


def describe_progress(members: Sequence[MemberView]) -> str:
    """`12 of 40 done, 3 failed, 4 running`."""
    done = sum(member.is_final for member in members)
    failed = sum(member.is_final and compute_status(member) > 0 for member in members)
    running = sum(member.state is MemberState.RUNNING for member in members)
    parts = [f"{done} of {len(members)} done"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{running} running"] if running else []
    return ", ".join(parts)


def describe_ends(members: Sequence[MemberView]) -> str:
    """`40 members: 37 COMPLETED, 3 FAILED (4711/3, 4711/7, 4711/9)`."""
    by_state: dict[str, list[str]] = {}
    for member in sorted(members, key=lambda m: m.member):
        by_state.setdefault(member.state.value, []).append(str(member.member))
    parts = []
    for state, names in sorted(by_state.items(), key=lambda entry: -len(entry[1])):
        shown = ", ".join(names[:_NAMED_MOST]) + (", ..." if len(names) > _NAMED_MOST else "")
        is_good = state == MemberState.COMPLETED.value
        parts.append(f"{len(names)} {state}" + ("" if is_good else f" ({shown})"))
    failed = any(compute_status(m) and m.state is not MemberState.CANCELLED for m in members)
    hint = f"; csub retry {members[0].member.job} tries again what failed" if failed else ""
    return f"{format_count(len(members), 'member')}: {', '.join(parts)}{hint}"


def _await_summaries(session: Session, views: Sequence[PackView]) -> None:
    """What is learned from packs that have ended is there for the call that follows."""
    ended = [
        view.record.pack_id for view in views if all(member.is_final for member in view.members)
    ]
    if isinstance(session.state, State):
        await_summaries(session.state, session.settings, ended, session.refresh)


def _describe_worst(worst: MemberView, status: int, others: int) -> str:
    text = f"exit status {status} is that of {worst.member}, {worst.state.value}"
    if others:
        text += f"; {others} more did not complete"
    return text


def compute_status(member: MemberView) -> int:
    """A member's exit status as a shell would give it; 1 where its end was not seen."""
    if member.state is MemberState.COMPLETED:
        return 0
    code = member.record.exit_code if member.record else None
    status = code.shell_status if code else 0
    return status or 1


def compute_sbatch_status(member: MemberView) -> int:
    """A member's exit status as `sbatch --wait` gives it: 1 for whatever a signal has ended."""
    code = member.record.exit_code if member.record else None
    if code is not None and code.signal and member.state is not MemberState.COMPLETED:
        return 1
    return compute_status(member)
