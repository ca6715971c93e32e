"""What a command is to act on: selectors, and the filters --state and --name."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import ALL, FINAL_STATES, MemberState, Selection, is_guest
from slurm_colloc.model.parameters import Parameters, format_parameters, meets, parse_condition

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import MemberView, PackView

# squeue(1), JOB STATE CODES.
_SHORT = {
    "PD": MemberState.PENDING,
    "R": MemberState.RUNNING,
    "CD": MemberState.COMPLETED,
    "F": MemberState.FAILED,
    "CA": MemberState.CANCELLED,
    "TO": MemberState.TIMEOUT,
    "OOM": MemberState.OUT_OF_MEMORY,
    "PR": MemberState.PREEMPTED,
    "NF": MemberState.NODE_FAIL,
    "RQ": MemberState.REQUEUED,
}


def parse_states(text: str) -> frozenset[MemberState]:
    """Read `RUNNING,PENDING` or `R,PD`, in any case; nothing for an empty text.

    Raises:
        UsageProblem: A word is no state.
    """
    states = set()
    for word in filter(None, (part.strip().upper() for part in text.split(","))):
        try:
            states.add(_SHORT.get(word) or MemberState(word))
        except ValueError:
            raise UsageProblem(
                f"--state: there is no state {word!r}",
                hint=f"states are {', '.join(MemberState)}",
            ) from None
    return frozenset(states)


def _parse_where(text: str) -> tuple[str, str]:
    try:
        return parse_condition(text)
    except ValueError as error:
        raise UsageProblem(f"--where: {text!r} {error}") from None


@dataclass(frozen=True)
class Choice:
    """Members by selectors and filters.

    Attributes:
        selections: What was named; nothing where neither a selector nor a filter was given.
        states: Members must be in one of these; empty for any state.
        name: Pattern of their job names; empty for any name.
        ended: `all` reaches members that have ended, too.
        where: Conditions on their parameters (model.parameters.meets); empty for any.
    """

    selections: tuple[Selection, ...]
    states: frozenset[MemberState] = frozenset()
    name: str = ""
    ended: bool = False
    where: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(
        cls,
        targets: Sequence[str],
        states: str = "",
        name: str = "",
        where: Sequence[str] | None = None,
        *,
        ended: bool = False,
    ) -> Choice:
        """Read a command's selectors and filters; filters alone mean all.

        Raises:
            UsageProblem: One of them cannot be read.
        """
        selections = tuple(Selection.parse(text) for text in targets)
        found = parse_states(states)
        conditions = tuple(map(_parse_where, where or ()))
        if not selections and (found or name or conditions):
            selections = (Selection(ALL),)
        return cls(selections, found, name, ended, conditions)

    @property
    def wants_ended(self) -> bool:
        """Members that have ended are meant, too, where their states were asked for."""
        return self.ended or bool(self.states & FINAL_STATES)

    @property
    def names_members(self) -> bool:
        """Members were named by their numbers."""
        return any(selection.ranges is not None for selection in self.selections)

    @property
    def is_filtered(self) -> bool:
        """Filters narrow down what was named."""
        return bool(self.states or self.name or self.where)

    def matches(self, state: MemberState, name: str, parameters: Parameters) -> bool:
        """A member passes the filters."""
        return (
            (not self.states or state in self.states)
            and (not self.name or fnmatch.fnmatchcase(name, self.name))
            and (not self.where or meets(parameters, self.where))
        )

    def __str__(self) -> str:
        words = [str(selection) for selection in self.selections]
        words += [f"--state={','.join(sorted(self.states))}"] if self.states else []
        words += [f"--name={self.name}"] if self.name else []
        words += [f"--where {format_parameters((condition,))}" for condition in self.where]
        return " ".join(words)


def is_of_job(member: MemberView, job: str, view: PackView, takers: Sequence[str]) -> bool:
    """Whether a member is of the job that was named, or only in a pack of it or with members of it.

    A job's id may be that of a part of a submission, after whose first its members are named.
    """
    if view.record.pack_id in takers or is_guest(member.place):
        return member.member.job == job
    return True
