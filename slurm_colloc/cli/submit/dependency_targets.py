"""What the ids in `--dependency` stand for: members, tasks, submissions of several Slurm jobs.

Slurm numbers packs where the user numbers tasks. So a task of a submission of csub's is read as
its member, `aftercorr` as one member for each task, and the id of a submission as all Slurm jobs
that it became. Ids that csub does not know are Slurm's to judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from slurm_colloc.cli.session import Session
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_ids import parse_job_id
from slurm_colloc.model.member import MemberId, Selection
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.sbatch.dependency import AFTERCORR, MEMBER_KINDS, Condition, Dependency
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)

Standing = tuple[PackView, MemberView]
"""A member where it is now, which may be another pack than the one that it is named after."""


class DependencyTargets:
    """Looks up what dependencies name, each job once.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._slurm_jobs: dict[str, tuple[str, ...]] = {}
        self._numbers: dict[str, frozenset[int]] = {}
        self._standing: dict[MemberId, Standing] = {}

    def is_concerned(self, dependency: Dependency) -> bool:
        """It names something that Slurm alone would read otherwise, or could not read."""
        for condition in dependency.conditions:
            job, ranges = self._read(condition.target)
            if condition.is_of_member or condition.kind == AFTERCORR:
                return True
            is_several = len(self._find_slurm_jobs(job)) > 1 or self._has_left(job)
            if job and (ranges is not None or is_several):
                return True
        return False

    def expand(self, dependency: Dependency, job: Job, text: str) -> Dependency:
        """A dependency in words of which each is a member, or Slurm's.

        Args:
            dependency: What was asked.
            job: For which job.
            text: The user's own words, for messages.

        Raises:
            UsageProblem: That cannot be said.
        """
        conditions = []
        for condition in dependency.conditions:
            conditions += self._expand(condition, job, text, is_any=dependency.is_any)
        return dataclasses.replace(dependency, conditions=tuple(dict.fromkeys(conditions)))

    def is_left_to_slurm(self, dependency: Dependency) -> bool:
        """It pairs tasks with those of a job that csub does not know."""
        return any(condition.kind == AFTERCORR for condition in dependency.conditions)

    def look_up(self, dependencies: Iterable[Dependency]) -> Mapping[MemberId, Standing]:
        """All members that dependencies name, where they are now.

        Raises:
            NotFound: There is no such member.
        """
        wanted: dict[str, set[int]] = {}
        for dependency in dependencies:
            for condition in dependency.conditions:
                if condition.is_of_member:
                    member = MemberId.parse(condition.target)
                    wanted.setdefault(member.job, set()).add(member.number)
        for job, numbers in wanted.items():
            for view, members in self._session.survey([Selection.of(job, numbers)]):
                for found in members:
                    # One that was submitted again keeps its number.
                    self._standing[MemberId(job, found.member.number)] = (view, found)
        return self._standing

    def _expand(
        self, condition: Condition, job: Job, text: str, *, is_any: bool
    ) -> list[Condition]:
        if condition.is_of_member:
            return [condition]
        target, plus, delay = condition.target.partition("+")
        known, ranges = self._read(target)
        if not known:
            return [condition]
        if ranges is not None:
            if condition.kind not in MEMBER_KINDS or plus:
                what = "a delay (+minutes)" if plus else condition.kind
                raise UsageProblem(
                    f"--dependency={text}: {what} cannot be used with a single task, {target}",
                    hint=f"afterok:{target} waits for its success",
                )
            numbers = (n for first, last in ranges for n in range(first, last + 1))
            return [Condition(condition.kind, f"{known}/{number}") for number in numbers]
        if condition.kind == AFTERCORR and job.array_task is not None:
            return [self._pair(known, job.number, text)]
        kind = "afterok" if condition.kind == AFTERCORR else condition.kind
        slurm_jobs = self._find_slurm_jobs(known)
        has_left = self._has_left(known) and kind in MEMBER_KINDS and not plus
        if (len(slurm_jobs) > 1 or has_left) and (is_any or kind == "afternotok"):
            said = "`?`" if is_any else kind
            count = len(slurm_jobs)
            which = f"became {count} Slurm jobs" if count > 1 else "has members in other Slurm jobs"
            raise UsageProblem(
                f"--dependency={text}: {known} {which}, of which {said} cannot be used together",
                hint=f"name its members, as in {kind}:{known}/{min(self._find_numbers(known))}",
            )
        if has_left:
            # Its own Slurm job tells nothing of members that run in those of others.
            names = (f"{known}/{number}" for number in sorted(self._find_numbers(known)))
            return [Condition(kind, name) for name in names]
        ids = slurm_jobs or (known,)
        return [Condition(kind, f"{slurm_id}{plus}{delay}") for slurm_id in ids]

    def _pair(self, known: str, number: int, text: str) -> Condition:
        """The member whose success a task waits for."""
        numbers = self._find_numbers(known)
        if number not in numbers:
            shown = format_task_ids(numbers)
            raise UsageProblem(
                f"--dependency={text}: task {number} has no counterpart, {known} has {shown}",
                hint="give both the same --array, or use afterok",
            )
        return Condition("afterok", f"{known}/{number}")

    def _read(self, target: str) -> tuple[str, tuple[tuple[int, int], ...] | None]:
        """The job of csub's that a target names, and the tasks in it; no job where it is none."""
        try:
            found = parse_job_id(target.partition("+")[0])
        except ValueError:
            found = None
        # No Slurm job can wait for what runs without Slurm; it is refused as it stands.
        if found is None or not found[0].isdecimal() or not self._find_slurm_jobs(found[0]):
            return "", None
        return found

    def _find_slurm_jobs(self, job: str) -> tuple[str, ...]:
        if job not in self._slurm_jobs:
            self._slurm_jobs[job] = self._session.state.find_slurm_jobs(job)
        return self._slurm_jobs[job]

    def _has_left(self, job: str) -> bool:
        """Packs of other submissions may have members of it."""
        return bool(self._session.state.list_takers(job))

    def _find_numbers(self, job: str) -> frozenset[int]:
        if job not in self._numbers:
            found = self._session.survey([Selection(job)], follow_all=False)
            self._numbers[job] = frozenset(m.member.number for _, members in found for m in members)
        return self._numbers[job]
