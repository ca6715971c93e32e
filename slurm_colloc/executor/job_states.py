"""What csub's state and Slurm say of the members of jobs from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_colloc.errors import MemberFailed, NotFound, StateError
from slurm_colloc.model.member import MemberId, MemberState, Selection

if TYPE_CHECKING:
    from slurm_colloc.cli.session import Session
    from slurm_colloc.report.member_views import MemberView, PackView


@dataclass(frozen=True)
class SeenMember:
    """A member as it was seen last.

    Attributes:
        member: Its name; another one than it was submitted under where it was submitted again.
        state: Its state.
        reason: Why it is in this state, in words.
        exit_status: As a shell gives it; None before its end.
        is_final: It will not run again.
        output: Its output file.
        error: Its error file; None where both go to one.
        owner: Whose these files have to be; None where they are the caller's own.
    """

    member: MemberId
    state: MemberState
    reason: str
    exit_status: int | None
    is_final: bool
    output: str
    error: str | None
    owner: int | None


def open_session() -> Session:
    """The caller's state, to read it; another user's, where the settings lead there.

    A command of csub reads that as root with its owner's rights alone. Here they would be those of
    all threads of a program that is not csub's, so root is refused.

    Raises:
        CollocError: The state cannot be read.
    """
    from slurm_colloc.cli.session import Session
    from slurm_colloc.store.all_packs import State

    session = Session.open()
    if os.geteuid() == 0 and not isinstance(session.state, State):
        owner = session.state.owner_name
        raise StateError(
            f"root reads no state of another user from Python, and {session.state.root} belongs to "
            f"{owner}",
            hint=f"csub show --user {owner}, or run Python as {owner}",
        )
    return session


def read_states(members: Iterable[MemberId]) -> dict[MemberId, SeenMember]:
    """Look at members with one question to Slurm; those that csub does not know are left out.

    Raises:
        CollocError: The state cannot be read.
    """
    wanted = set(members)
    session = open_session()
    found: dict[MemberId, SeenMember] = {}
    for view, member in _survey(session, sorted({member.job for member in wanted})):
        if member.member not in wanted:
            continue
        if member.moved_to is None:
            found[member.member] = _describe(view, member)
            continue
        one = [Selection.of(member.member.job, (member.member.number,))]
        for later, followed in session.survey(one):
            found[member.member] = _describe(later, followed[0])
    return found


def _survey(session: Session, jobs: Sequence[str]) -> list[tuple[PackView, MemberView]]:
    """All members of submissions, under the names that they were submitted with."""
    try:
        views = session.survey([Selection(job) for job in jobs], follow_all=False)
    except NotFound:
        if len(jobs) == 1:
            return []
        # One of them is not kept any more.
        return [pair for job in jobs for pair in _survey(session, [job])]
    return [(view, member) for view, members in views for member in members]


def build_failure(seen: SeenMember) -> MemberFailed:
    """The exception of a member that has ended without a result."""
    from slurm_colloc.report.member_output import read_last_line

    line = read_last_line((seen.error, seen.output), seen.owner)
    how = seen.state.value
    if seen.exit_status and seen.state is MemberState.FAILED:
        how += f" with exit status {seen.exit_status}"
    if seen.reason:
        how += f" ({seen.reason})"
    if seen.state is MemberState.COMPLETED:
        how += " but left no result; do its node and this machine share the Executor's folder?"
    return MemberFailed(
        f"{seen.member} {how}" + (f"; its last line: {line}" if line else ""),
        hint=f"csub explain {seen.member}",
        state=seen.state.value,
        last_line=line,
    )


def _describe(view: PackView, member: MemberView) -> SeenMember:
    from slurm_colloc.report.member_output import find_output_owner
    from slurm_colloc.report.show_view import find_log_paths

    output, error = find_log_paths(view, member)
    code = member.record.exit_code if member.record else None
    return SeenMember(
        member=member.member,
        state=member.state,
        reason=member.reason,
        exit_status=code.shell_status if code else None,
        is_final=member.is_final,
        output=output,
        error=error,
        owner=find_output_owner(member),
    )
