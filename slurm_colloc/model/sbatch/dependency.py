"""`--dependency` with members in it: `afterok:4711/3`, alone or among plain job ids.

Slurm knows no members. So Slurm is told to wait for the member's pack, and the condition itself is
judged from the state: when the job is submitted, when the member ends, and before the job starts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import FINAL_STATES, MemberId, MemberState

AFTERCORR = "aftercorr"
"""Pairs tasks of two arrays: each waits for the success of the other's task of its number."""

MEMBER_KINDS = frozenset({"after", "afterany", "afternotok", "afterok"})
"""What may stand before a member."""

_MEMBER = re.compile(r"\d+/\d+")


class ConditionOutlook(enum.Enum):
    """What can be said of a condition."""

    SATISFIED = "satisfied"
    NEVER = "never"
    OPEN = "open"


@dataclass(frozen=True)
class Condition:
    """One condition: `afterok` and `4711/3`, or a plain one as Slurm understands it.

    Attributes:
        kind: `afterok`, ...; empty for a word without an id, such as `singleton`.
        target: A member (`4711/3`), or what Slurm is given as it is.
    """

    kind: str
    target: str

    @property
    def is_of_member(self) -> bool:
        """It speaks of a member."""
        return "/" in self.target

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.kind else self.target


@dataclass(frozen=True)
class Dependency:
    """All conditions of a job.

    Attributes:
        conditions: In the user's order.
        is_any: One of them is enough (`?`); otherwise all must hold.
    """

    conditions: tuple[Condition, ...]
    is_any: bool = False


def names_singleton(text: str) -> bool:
    """A value of `--dependency` that goes by the job's name."""
    return "singleton" in re.split(r"[,?]", text.lower())


def join_conditions(texts: Iterable[str]) -> str:
    """All conditions of several values for sbatch, each once; alternatives must be equal in all."""
    words = (word for text in texts for word in ([text] if "?" in text else text.split(",")))
    return ",".join(dict.fromkeys(filter(None, words)))


def add_condition(text: str, condition: str) -> str:
    """A value for sbatch with one condition more.

    Raises:
        UsageProblem: It has alternatives, and Slurm has no words for both.
    """
    if "?" in text:
        raise UsageProblem(
            f"--dependency={text}: its jobs become several Slurm jobs that wait for each other, "
            "which cannot be combined with `?`",
            hint="leave out the limit of --array, or join the conditions by `,`",
        )
    return f"{text},{condition}" if text else condition


def parse_dependency(text: str) -> Dependency:
    """Read the value of `--dependency`.

    Raises:
        ValueError: It is malformed where it speaks of members; the rest is Slurm's to judge.
    """
    if "," in text and "?" in text:
        raise ValueError("conditions are joined by `,` (all) or by `?` (one), not by both")
    conditions = []
    for word in re.split(r"[,?]", text):
        kind, separator, targets = word.strip().partition(":")
        # In any case, as Slurm reads them.
        kind = kind.lower()
        if not separator:
            conditions.append(Condition("", kind))
            continue
        for target in targets.split(":"):
            if "/" in target:
                _check_member(kind, target)
            conditions.append(Condition(kind, target))
    return Dependency(tuple(conditions), "?" in text)


def _check_member(kind: str, target: str) -> None:
    if kind not in MEMBER_KINDS:
        raise ValueError(
            f"{kind} cannot be used with a member, only {', '.join(sorted(MEMBER_KINDS))}"
        )
    if "+" in target:
        raise ValueError(f"{target}: a delay (+minutes) cannot be used with a member")
    if target.startswith("L"):
        raise ValueError(f"{target} runs without Slurm, no Slurm job can wait for it")
    if not _MEMBER.fullmatch(target):
        raise ValueError(f"{target!r} is not a member id, one is written 4711/3")


def judge_member(kind: str, state: MemberState, *, has_started: bool) -> ConditionOutlook:
    """Judge a condition by what its member is.

    Args:
        kind: `after`, `afterany`, `afternotok` or `afterok`.
        state: The member's state, as a reader must see it.
        has_started: It was started at least once.
    """
    is_final = state in FINAL_STATES
    if kind == "after":
        return ConditionOutlook.SATISFIED if is_final or has_started else ConditionOutlook.OPEN
    if not is_final:
        return ConditionOutlook.OPEN
    if kind == "afterany" or (kind == "afterok") == (state is MemberState.COMPLETED):
        return ConditionOutlook.SATISFIED
    return ConditionOutlook.NEVER


def reduce_dependency(
    dependency: Dependency, judge: Callable[[Condition], ConditionOutlook]
) -> tuple[ConditionOutlook, Dependency]:
    """Leave out what is decided.

    Args:
        dependency: What was asked.
        judge: Judges a condition; OPEN where only Slurm can.

    Returns:
        The outlook of the whole, and what is still open.
    """
    outlooks = [judge(condition) for condition in dependency.conditions]
    decisive = ConditionOutlook.SATISFIED if dependency.is_any else ConditionOutlook.NEVER
    other = ConditionOutlook.NEVER if dependency.is_any else ConditionOutlook.SATISFIED
    rest = tuple(
        condition
        for condition, outlook in zip(dependency.conditions, outlooks, strict=True)
        if outlook is ConditionOutlook.OPEN
    )
    if decisive in outlooks:
        return decisive, Dependency((), dependency.is_any)
    return (ConditionOutlook.OPEN if rest else other), Dependency(rest, dependency.is_any)


def render_for_slurm(dependency: Dependency, find_job: Callable[[MemberId], str]) -> str:
    """The value for sbatch: a member's condition becomes `afterany` of its pack.

    The pack is over at the latest when its last member has ended, so that is never too early
    where all conditions must hold; where one is enough, the job's runner looks again.

    Args:
        dependency: What is open.
        find_job: The Slurm job of a member's pack.
    """
    words = [
        f"afterany:{find_job(MemberId.parse(condition.target))}"
        if condition.is_of_member
        else str(condition)
        for condition in dependency.conditions
    ]
    return ("?" if dependency.is_any else ",").join(dict.fromkeys(words))


def remove_job(current: str, job_id: str) -> str:
    """Take `afterany` of a job out of what Slurm shows as a job's dependency.

    Args:
        current: The field of `scontrol show job`: `afterany:12_3(unfulfilled),afterok:14(...)`.
        job_id: The job.

    Returns:
        The value for `scontrol update`, empty for none.
    """
    if current in ("", "(null)"):
        return ""
    separator = "?" if "?" in current else ","
    words = [word.partition("(")[0] for word in re.split(r"[,?]", current)]
    return separator.join(word for word in words if word != f"afterany:{job_id}")


def describe(conditions: Sequence[tuple[str, str]], *, is_any: bool = False) -> str:
    """Conditions as the user wrote them: `afterok:4711/3`."""
    return ("?" if is_any else ",").join(
        f"{kind}:{target}" if kind else target for kind, target in conditions
    )
