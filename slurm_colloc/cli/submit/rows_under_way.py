"""Which rows of a table have been submitted, and how they have ended: the state alone tells.

A row's key travels in its job's spec.json, which is in its place before sbatch is called. So a csub
that is killed at any moment leaves a row either submitted and found here, or not submitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.cli.session import Session
from slurm_colloc.model.member import MemberState
from slurm_colloc.report.member_views import MemberView


@dataclass(frozen=True)
class RowState:
    """A row that was submitted.

    Attributes:
        member: Its newest member.
        is_done: A member of it has completed.
        is_under_way: One waits or runs.
    """

    member: MemberView
    is_done: bool
    is_under_way: bool

    @property
    def status(self) -> str:
        """`COMPLETED`, `FAILED(3)`, `RUNNING`."""
        record = self.member.record
        code = record.exit_code if record is not None else None
        if self.member.state is MemberState.FAILED and code is not None:
            return f"FAILED({code.shell_status})"
        return self.member.state.value


def find_rows(session: Session, table: str) -> dict[str, RowState]:
    """The rows of a table that were submitted, by their keys.

    Args:
        session: The call's.
        table: What the table is known by.

    Raises:
        SlurmError: Slurm does not say which jobs there are.
        StateError: A pack cannot be read, which may hold a row.
    """
    views = session.survey_all()
    if session.unreachable is not None:
        raise session.unreachable
    if session.damaged:
        raise session.damaged[0]
    found: dict[str, RowState] = {}
    for view in views:
        for member in view.members:
            if member.row.startswith(f"{table}:"):
                found[member.row] = _join(found.get(member.row), member)
    return found


def _join(before: RowState | None, member: MemberView) -> RowState:
    is_done = member.state is MemberState.COMPLETED
    if before is None:
        return RowState(member, is_done, not member.is_final)
    # Views come in the order of their Slurm jobs: the last one is the newest.
    newest = before.member if before.is_done and not is_done else member
    return RowState(newest, before.is_done or is_done, before.is_under_way or not member.is_final)
