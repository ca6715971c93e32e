"""Waiting for members to end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from slurm_colloc.cli.await_summaries import await_summaries
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, freeze, note
from slurm_colloc.model.member import MemberState, Selection
from slurm_colloc.model.sbatch.quantities import format_members
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.store.all_packs import State

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
    return f"{format_members(len(members))}: {', '.join(parts)}{hint}"


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
