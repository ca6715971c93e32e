"""`--dependency` on members: judged when a job is submitted, and told to the packs concerned."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

from slurm_colloc.cli.change.ask_runner import wake_runner
from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import SlurmError, StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.member import MemberId, Selection, SlurmJobState
from slurm_colloc.model.sbatch.dependency import (
    Condition,
    ConditionOutlook,
    Dependency,
    judge_member,
    names_members,
    parse_dependency,
    reduce_dependency,
    render_for_slurm,
)
from slurm_colloc.report.member_survey import MemberView, PackView
from slurm_colloc.store.pack.runner_requests import Dependent, write_dependent
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.jobs.job_options import parse_option
from slurm_colloc.submission.packs.submit_batch import Submitted

_OPTION = "dependency"
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
    resolved: dict[str, Job] = {}
    candidates = []
    for candidate in call.candidates:
        text = _get_text(candidate.job)
        if not names_members(text):
            candidates.append(candidate)
            continue
        if text not in resolved:
            resolved[text] = _resolve(session, call, candidate, text, local=local)
        done = resolved[text]
        job = dataclasses.replace(
            candidate.job,
            group=done.group,
            depends=done.depends,
            depends_on_any=done.depends_on_any,
            slurm_dependency=done.slurm_dependency,
        )
        candidates.append(dataclasses.replace(candidate, job=job))
    return dataclasses.replace(call, candidates=tuple(candidates))


def tell_packs(session: Session, call: Call, submitted: Sequence[Submitted]) -> None:
    """Tell the packs of open conditions who waits for their members.

    Without it the jobs start when the packs are over, so a failure here is no failure.
    """
    jobs = {candidate.job.number: candidate.job for candidate in call.candidates}
    for entry in submitted:
        job = jobs[entry.members[0][0]]
        by_pack: dict[str, tuple[PackView, list[tuple[str, int]]]] = {}
        for kind, target in job.depends:
            if "/" in target:
                member = MemberId.parse(target)
                for view, _ in session.survey([_select(member)]):
                    conditions = by_pack.setdefault(view.record.pack_id, (view, []))[1]
                    conditions.append((kind, member.number))
        for pack_id, (view, conditions) in by_pack.items():
            dependent = Dependent(entry.job_id, tuple(conditions), job.depends_on_any)
            try:
                write_dependent(session.state.pack_path(pack_id), dependent)
            except StateError as problem:
                note(f"job {entry.job_id} starts when pack {view.job_id} is over: {problem}")
                continue
            with contextlib.suppress(SlurmError):
                wake_runner(session, view, view.job_id)


def _get_text(job: Job) -> str:
    return dict(job.group).get(_OPTION, "")


def _select(member: MemberId) -> Selection:
    return Selection.of(member.job, [member.number])


def _resolve(session: Session, call: Call, candidate: Candidate, text: str, *, local: bool) -> Job:
    dependency = parse_option(call.options, _OPTION, text, parse_dependency)
    standing = _look_up(session, dependency)
    dependency = _rename(dependency, standing)
    views = {str(member.member): (view, member) for view, member in standing.values()}
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
        state = views[first.target][1].state.value
        raise UsageProblem(
            f"--dependency={text} can never be satisfied: {first.target} is {state}",
            hint=f"csub show {first.target} tells how it ended",
        )
    group = tuple(pair for pair in candidate.job.group if pair[0] != _OPTION)
    if outlook is ConditionOutlook.SATISFIED:
        return dataclasses.replace(candidate.job, group=group)
    members = [condition for condition in rest.conditions if condition.is_of_member]
    if members:
        _check_followed(session, [views[c.target] for c in members], text, local=local)
    shown = ("?" if rest.is_any else ",").join(map(str, rest.conditions))
    watched = rest.conditions if rest.is_any else members
    slurm_text = render_for_slurm(rest, lambda member: views[str(member)][0].job_id)
    return dataclasses.replace(
        candidate.job,
        group=tuple(sorted([*group, (_OPTION, shown if members else slurm_text)])),
        depends=tuple((c.kind, c.target) for c in watched) if members else (),
        depends_on_any=rest.is_any,
        slurm_dependency=slurm_text if members else "",
    )


def _look_up(session: Session, dependency: Dependency) -> Mapping[str, tuple[PackView, MemberView]]:
    """The members that a dependency names, where they are now."""
    standing = {}
    for condition in dependency.conditions:
        if not condition.is_of_member or condition.target in standing:
            continue
        ((view, members),) = session.survey([_select(MemberId.parse(condition.target))])
        (member,) = members
        if not member.is_final and view.slurm_state is None:
            if session.unreachable is not None:
                raise session.unreachable
            raise UsageProblem(
                f"--dependency: {condition.target} is a job of another cluster",
                hint="submit on that cluster",
            )
        standing[condition.target] = (view, member)
    return standing


def _rename(
    dependency: Dependency, standing: Mapping[str, tuple[PackView, MemberView]]
) -> Dependency:
    """With the names that the members have now: one may have been submitted again."""
    return dataclasses.replace(
        dependency,
        conditions=tuple(
            dataclasses.replace(condition, target=str(standing[condition.target][1].member))
            if condition.is_of_member
            else condition
            for condition in dependency.conditions
        ),
    )


def _check_followed(
    session: Session,
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
        if view.record.carried or not session.settings.state_shared:
            raise UsageProblem(
                f"--dependency={text}: how {member.member} ends is not seen from here and there",
                hint=f"wait for its whole pack, --dependency=afterany:{view.job_id}",
            )
        if not view.job_id or view.slurm_state not in _WAITED_FOR:
            raise UsageProblem(
                f"--dependency={text}: {member.member} has no Slurm job to wait for",
                hint="a held member that has outlived its pack is to be released first",
            )
