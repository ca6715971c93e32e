"""`--dependency` on members: judged when a job is submitted, and told to the packs concerned.

Also: what the ids in `--dependency` stand for: members, tasks, submissions of several Slurm jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.errors import NotFound, SlurmError, StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_ids import format_task_ids, parse_job_id
from slurm_colloc.model.job_values import (
    AFTERCORR,
    MEMBER_KINDS,
    Condition,
    ConditionOutlook,
    Dependency,
    judge_member,
    parse_dependency,
    reduce_dependency,
    render_for_slurm,
)
from slurm_colloc.model.late_definitions import late_pattern, replace
from slurm_colloc.model.member import LAST, MemberId, Selection, SlurmJobState
from slurm_colloc.report.member_survey import find_last
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.session.cancel_and_requeue import wake_runner
from slurm_colloc.session.session import Session, note
from slurm_colloc.store.runner_requests import Dependent, write_dependent
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.jobs.job_options import parse_option
from slurm_colloc.submission.packs.submit_batch import Submitted

# ----
# What the ids in `--dependency` stand for: members, tasks, submissions of several Slurm jobs.
#
# Slurm numbers packs where the user numbers tasks. So a task of a submission of csub's is read as
# its member, `aftercorr` as one member for each task, and the id of a submission as all Slurm jobs
# that it became. Ids that csub does not know are Slurm's to judge.

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
        return replace(dependency, conditions=tuple(dict.fromkeys(conditions)))

    def look_up(self, dependencies: Iterable[Dependency]) -> Mapping[MemberId, Standing]:
        """All members that dependencies name, where they are now.

        Raises:
            NotFound: There is no such member.
        """
        wanted = Selection.of_each(
            MemberId.parse(condition.target)
            for dependency in dependencies
            for condition in dependency.conditions
            if condition.is_of_member
        )
        for selection in wanted:
            for view, members in self._session.survey([selection]):
                for found in members:
                    # One that was submitted again keeps its number.
                    self._standing[MemberId(selection.job, found.member.number)] = (view, found)
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
        is_several = len(slurm_jobs) > 1 or (has_left and len(self._find_numbers(known)) > 1)
        if is_several and (is_any or kind == "afternotok"):
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
        if found is None or not found[0].isdecimal():
            return "", None
        state = self._session.state
        try:
            named = state.resolve(Selection(*found))
        except NotFound:
            # To Slurm an id that it does not know is satisfied.
            if state.has_given_numbers():
                raise
            return "", None
        found = named.job, named.ranges
        return found if self._find_slurm_jobs(found[0]) else ("", None)

    def _find_slurm_jobs(self, job: str) -> tuple[str, ...]:
        if job not in self._slurm_jobs:
            self._slurm_jobs[job] = self._session.state.find_slurm_jobs(job)
        return self._slurm_jobs[job]

    def _has_left(self, job: str) -> bool:
        """Its members may end apart from its Slurm job.

        Others may have joined it, or may yet; and its own may be in the jobs of other submissions,
        or of its chain.
        """
        state = self._session.state
        if state.list_takers(job):
            return True
        with contextlib.suppress(NotFound, StateError):
            first = state.read_pack(state.find_packs(job)[0])
            if first is not None:
                may_be_joined = first.policy is not None and not first.closed
                return first.chain > 0 or may_be_joined
        return False

    def _find_numbers(self, job: str) -> frozenset[int]:
        if job not in self._numbers:
            found = self._session.survey([Selection(job)], follow_all=False)
            self._numbers[job] = frozenset(m.member.number for _, members in found for m in members)
        return self._numbers[job]


# ----
# `--dependency` on members: judged when a job is submitted, and told to the packs concerned.

_OPTION = "dependency"
_LAST = late_pattern(rf"(?<=:){LAST}(?P<member>[/_][0-9]+)?(?=[:,?+]|$)")
_PAIRED_BY_SLURM = "--dependency=aftercorr pairs it with a task of a job that csub does not know"
_WAITED_FOR = (
    SlurmJobState.PENDING,
    SlurmJobState.RUNNING,
    SlurmJobState.SUSPENDED,
    SlurmJobState.COMPLETING,
)


def resolve_members(session: Session, call: Call, *, local: bool) -> Call:
    """The call with what is decided left out of its dependencies, and the rest understood.

    Raises:
        NotFound: There is no such member.
        UsageProblem: It is malformed, can never be satisfied, or no call could look after it.
        SlurmError: Slurm cannot say how the member stands.
    """
    call = _name_last(session, call)
    targets = DependencyTargets(session)
    asked: dict[str, Dependency] = {}
    wanted: dict[int, Dependency] = {}
    for place, candidate in enumerate(call.candidates):
        text = _get_text(candidate.job)
        if text and text not in asked:
            asked[text] = parse_option(call.options, _OPTION, text, parse_dependency)
        if text and targets.is_concerned(asked[text]):
            wanted[place] = targets.expand(asked[text], candidate.job, text)
    if not wanted:
        return call
    standing = _check_known(session, targets.look_up(wanted.values()))
    resolve = _Resolution(session, standing, local=local)
    resolved: dict[tuple[str, Dependency], Job | UsageProblem] = {}
    candidates = list(call.candidates)
    for place, dependency in wanted.items():
        job = candidates[place].job
        text = _get_text(job)
        if (text, dependency) not in resolved:
            resolved[text, dependency] = resolve.apply(job, dependency, text)
        done = resolved[text, dependency]
        if isinstance(done, UsageProblem):
            is_hopeless = all(isinstance(other, UsageProblem) for other in resolved.values())
            if AFTERCORR not in text.lower() or (is_hopeless and place == max(wanted)):
                raise done
            # The others of an array go on; its runner says why this one does not.
            done = resolve.leave_to_runner(job, dependency)
        elif job.array_task is not None and any(
            condition.kind == AFTERCORR for condition in dependency.conditions
        ):
            # What is still paired is with tasks of a job that csub does not know.
            done = replace(done, alone_because=_PAIRED_BY_SLURM)
        job = replace(
            job,
            group=done.group,
            depends=done.depends,
            depends_on_any=done.depends_on_any,
            slurm_dependency=done.slurm_dependency,
            alone_because=job.alone_because or done.alone_because,
        )
        candidates[place] = replace(candidates[place], job=job)
    return replace(call, candidates=tuple(candidates))


def tell_packs(session: Session, call: Call, submitted: Sequence[Submitted]) -> None:
    """Tell the packs of open conditions who waits for their members.

    Without it the jobs start when the packs are over, so a failure here is no failure.
    """
    jobs = {candidate.job.number: candidate.job for candidate in call.candidates}
    for entry in submitted:
        members = [jobs[number] for numbers in entry.members for number in numbers]
        job = members[0]
        by_pack: dict[str, tuple[PackView, list[tuple[str, int]]]] = {}
        wanted = dict.fromkeys(pair for each in members for pair in each.depends)
        names = {MemberId.parse(target) for _, target in wanted if "/" in target}
        where = {
            found.member.address: (view, found.place)
            for view, listed in session.survey(Selection.of_each(names))
            for found in listed
        }
        for kind, target in wanted:
            if target in where:
                view, place = where[target]
                conditions = by_pack.setdefault(view.record.pack_id, (view, []))[1]
                conditions.append((kind, place))
        for pack_id, (view, conditions) in by_pack.items():
            dependent = Dependent(entry.job_id, tuple(conditions), job.depends_on_any)
            try:
                write_dependent(session.state.pack_path(pack_id), dependent)
            except StateError as problem:
                note(f"job {entry.job_id} starts when pack {view.job_id} is over: {problem}")
                continue
            with contextlib.suppress(SlurmError):
                wake_runner(session, view, view.job_id)


def _name_last(session: Session, call: Call) -> Call:
    """The call with the id of the newest submission where a condition names it as `last`."""
    texts = dict.fromkeys(_get_text(candidate.job) for candidate in call.candidates)
    if not any(map(_LAST.search, texts)):
        return call
    found = find_last(session.state)
    # Of jobs that joined another submission's pack, they are the last, and not all of it.
    whole = found.job
    if found.ranges is not None:
        whole = ":".join(f"{found.job}_[{first}-{final}]" for first, final in found.ranges)
    candidates = []
    for candidate in call.candidates:
        text = _get_text(candidate.job)
        named = _LAST.sub(
            lambda match: found.job + match["member"] if match["member"] else whole, text
        )
        group = tuple(
            (name, named if name == _OPTION else value) for name, value in candidate.job.group
        )
        job = replace(candidate.job, group=group)
        candidates.append(replace(candidate, job=job))
    return replace(call, candidates=tuple(candidates))


def _get_text(job: Job) -> str:
    return dict(job.group).get(_OPTION, "")


class _Resolution:
    """Judges what dependencies name by how it stands now."""

    def __init__(
        self, session: Session, standing: Mapping[MemberId, Standing], *, local: bool
    ) -> None:
        self._session = session
        self._standing = standing
        self._local = local

    def apply(self, job: Job, dependency: Dependency, text: str) -> Job | UsageProblem:
        """The job with what is still open of its dependency, or why it can never start."""
        dependency = self._rename(dependency)
        views = {member.member.address: (view, member) for view, member in self._standing.values()}
        never: list[Condition] = []

        def judge(condition: Condition) -> ConditionOutlook:
            if not condition.is_of_member:
                return ConditionOutlook.OPEN
            _, member = views[condition.target]
            started = member.record is not None and member.record.starts > 0
            outlook = judge_member(condition.kind, member.state, has_started=started)
            if outlook is ConditionOutlook.NEVER:
                never.append(condition)
            return outlook

        outlook, rest = reduce_dependency(dependency, judge)
        if outlook is ConditionOutlook.NEVER:
            first = never[0]
            member = views[first.target][1]
            return UsageProblem(
                f"--dependency={text} can never be satisfied: {member.member} is "
                f"{member.state.value}",
                hint=f"csub show {member.member} tells how it ended",
            )
        group = tuple(pair for pair in job.group if pair[0] != _OPTION)
        if outlook is ConditionOutlook.SATISFIED:
            return replace(job, group=group)
        members = [condition for condition in rest.conditions if condition.is_of_member]
        if members:
            views_of = [views[c.target] for c in members]
            _check_followed(views_of, text, local=self._local)
        # Tasks that wait for one each are alike to Slurm, and may share.
        shown = (
            text
            if AFTERCORR in text.lower()
            else ("?" if rest.is_any else ",").join(map(str, rest.conditions))
        )
        watched = rest.conditions if rest.is_any else members
        slurm_text = render_for_slurm(rest, lambda member: views[str(member)][0].job_id)
        return replace(
            job,
            group=tuple(sorted([*group, (_OPTION, shown if members else slurm_text)])),
            depends=tuple((c.kind, c.target) for c in watched) if members else (),
            depends_on_any=rest.is_any,
            slurm_dependency=slurm_text if members else "",
        )

    def leave_to_runner(self, job: Job, dependency: Dependency) -> Job:
        """A job that can never start, among others that may: its runner ends it, and says why."""
        members = [c for c in self._rename(dependency).conditions if c.is_of_member]
        return replace(job, depends=tuple((c.kind, c.target) for c in members))

    def _rename(self, dependency: Dependency) -> Dependency:
        """With the names that the members have now: one may have been submitted again."""
        return replace(
            dependency,
            conditions=tuple(
                replace(
                    condition,
                    target=self._standing[MemberId.parse(condition.target)][1].member.address,
                )
                if condition.is_of_member
                else condition
                for condition in dependency.conditions
            ),
        )


def _check_known(
    session: Session, standing: Mapping[MemberId, Standing]
) -> Mapping[MemberId, Standing]:
    """The same, where Slurm can say how all of them stand."""
    for name, (view, member) in standing.items():
        if not member.is_final and view.slurm_state is None:
            if session.unreachable is not None:
                raise session.unreachable
            raise UsageProblem(
                f"--dependency: {name} is a job of another cluster", hint="submit on that cluster"
            )
    return standing


def _check_followed(
    members: Sequence[tuple[PackView, MemberView]],
    text: str,
    *,
    local: bool,
) -> None:
    if local:
        raise UsageProblem(
            f"--dependency={text}: without Slurm nothing waits", hint="leave out --local"
        )
    for view, member in members:
        if not view.job_id or view.slurm_state not in _WAITED_FOR:
            raise UsageProblem(
                f"--dependency={text}: {member.member} has no Slurm job to wait for",
                hint="a held member that has outlived its pack is to be released first",
            )
