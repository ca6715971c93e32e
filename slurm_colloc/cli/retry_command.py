"""`csub retry ID [--failed|--timeout|--oom] [OPTIONS]`: what did not complete, once more.

New members of the same submission: 4711/3 becomes 4711/41. A job that has joined a pack is by
itself again at its next try, with the id that Slurm gives it. What they run is what was stored at
submission: the script, its arguments and its environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.cli.answer import build_answer_json, tell_id
from slurm_colloc.cli.batch_and_sweep import render_jobs
from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import ALL, EndCause, MemberId, MemberState, Selection
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import Given, Options, merge_options, parse_command_line
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.pack_directory import write_record
from slurm_colloc.submission.jobs.call_jobs import Candidate, build_call
from slurm_colloc.submission.jobs.directives import SiteOptions
from slurm_colloc.submission.jobs.stored_jobs import (
    SERVED,
    change_job,
    read_stored_environment,
    read_stored_policy,
    read_stored_script,
)
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.plan_call import CallPlan
from slurm_colloc.submission.submit import submit_call

LOCK_WAIT_S = 30.0
_FAILED = frozenset(
    {MemberState.FAILED, MemberState.NODE_FAIL, MemberState.PREEMPTED, MemberState.LOST}
)
_ENDS = {
    "--failed": _FAILED,
    "--timeout": frozenset({MemberState.TIMEOUT}),
    "--oom": frozenset({MemberState.OUT_OF_MEMORY}),
}
_CLOSED = "members of its submission are tried again in another pack"
_CALL_OPTIONS = frozenset({"json", "parsable", "quiet", "wait", "dry-run", "verbose", "explain"})


@dataclass(frozen=True)
class RetryRequest:
    """What a call of `csub retry` asks for.

    Attributes:
        choice: Which members.
        ends: The flags of how they must have ended; empty for any end but a good one.
        options: The options that the new members have instead of the old ones'.
    """

    choice: Choice
    ends: frozenset[str]
    options: Options

    def wants(self, view: PackView, member: MemberView) -> bool:
        """It asks for a member that ended so."""
        ends = self.ends or frozenset(_ENDS)
        if "--oom" in ends and view.cause_of(member) == EndCause.CUDA_OUT_OF_MEMORY.value:
            return True
        if any(member.state in _ENDS[flag] for flag in ends):
            return True
        is_cancelled = member.state is MemberState.CANCELLED
        return is_cancelled and not self.ends and self.names(member)

    def names(self, member: MemberView) -> bool:
        """It names a member by its number."""
        return any(
            s.names(member.member.number) and s.job == member.member.job
            for s in self.choice.selections
        )


def run_retry(argv: Sequence[str]) -> int:
    """Try members again; the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        say(HELP)
        return 0
    request = parse_retry(argv)
    session = Session.open_own(asks_often=request.options.flag("wait"))
    state = session.own_state
    state.prepare()
    with hold_lock(state.root / "retry.lock", LOCK_WAIT_S) as locked:
        if not locked:
            raise StateError("another csub retry is running")
        names = list(_retry_each(session, request))
    if not names:
        raise UsageProblem(
            f"{request.choice}: no member to try again",
            hint="members that failed, or ran out of time or memory, can be; see csub history",
        )
    if request.options.flag("wait") and not request.options.flag("dry-run"):
        from slurm_colloc.cli.hold_and_wait import wait_for

        return wait_for(session, [Selection.parse(name) for name in names])
    return 0


def parse_retry(argv: Sequence[str]) -> RetryRequest:
    """Read a call; ids, flags and options may stand in any order.

    Raises:
        UsageProblem: Something in it is wrong.
    """
    ends: set[str] = set()
    conditions: list[str] = []
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in _ENDS:
            ends.add(word)
        elif word == "--where" and rest:
            conditions.append(rest.pop(0))
        elif word.startswith("--where="):
            conditions.append(word.partition("=")[2])
        else:
            words.append(word)
    site = SiteOptions(read_given_environment())
    targets: list[str] = []
    given: list[Given] = []
    while words:
        line = site.parse(lambda o: parse_command_line(words, site_options=o))  # noqa: B023
        given += line.values
        targets += line.words[:1]
        words = list(line.words[1:])
    if not targets:
        raise UsageProblem("csub retry: name members to try again", hint="csub retry 4711, or last")
    options = merge_options(command_line=given)
    for item in options.givens:
        if item.option.name not in _CALL_OPTIONS and item.option.concern.value in ("call", "alone"):
            raise UsageProblem(f"--{item.option.name} is not an option of csub retry")
    choice = Choice.parse(targets, where=conditions, ended=True)
    return RetryRequest(choice, frozenset(ends), options)


def _retry_each(session: Session, request: RetryRequest) -> Iterator[str]:
    """Try the members of each submission again; the names of the new ones."""
    choice = request.choice
    resolved = tuple(session.state.resolve(selection) for selection in choice.selections)
    request = replace(request, choice=replace(choice, selections=resolved))
    found = [(view, m) for view, members in session.survey(request.choice) for m in members]
    joined = [(view, member) for view, member in found if member.member.joined_as]
    again = _find_tries(session, [member for _, member in joined])
    later = (*request.choice.selections, *Selection.of_each(again.values()))
    request = replace(request, choice=replace(request.choice, selections=later))
    wanted: dict[str, set[int]] = {}
    for _, member in found:
        name = again.get(str(member.member), member.member)
        if not name.joined_as:
            wanted.setdefault(name.job, set()).add(name.number)
    is_all = any(selection.job == ALL for selection in request.choice.selections)
    ready = []
    # Before the first is submitted.
    for job_id, numbers in wanted.items():
        views = [view for view, _ in session.survey([Selection(job_id)], follow_all=False)]
        chosen = _choose(views, job_id, numbers, request)
        try:
            _refuse_elsewhere(views)
        except UsageProblem as problem:
            if not is_all:
                raise
            if chosen:
                note(problem.message)
            continue
        if chosen:
            ready.append((job_id, views, chosen))
    if session.unreachable is not None:
        raise session.unreachable
    for view, member in _choose_joined(joined, again, request):
        yield from _retry(session, request, member.member.job, [view], [(view, member)])
    for job_id, views, chosen in ready:
        yield from _retry(session, request, job_id, views, chosen)


def _choose_joined(
    joined: Sequence[tuple[PackView, MemberView]],
    again: Mapping[str, MemberId],
    request: RetryRequest,
) -> list[tuple[PackView, MemberView]]:
    """The joined jobs to try again that were not tried again yet."""
    chosen = []
    for view, member in joined:
        if str(member.member) in again:
            continue
        if request.wants(view, member):
            _refuse_elsewhere([view])
            chosen.append((view, member))
        elif request.names(member):
            note(f"{member.member} is {member.state.value}: not tried again")
    return chosen


def _find_tries(session: Session, joined: Sequence[MemberView]) -> dict[str, MemberId]:
    """The newest try of each job that has joined a pack; it is in a submission of its own."""
    tries: dict[str, tuple[float, MemberView]] = {}
    wanted = {str(member.member) for member in joined}
    if wanted:
        since = min(member.spec.joined_at for member in joined)
        for view in session.survey_changed_since(since):
            for member in view.members:
                of, at = member.retry_of, view.record.created_at
                if of in wanted and (of not in tries or tries[of][0] <= at):
                    tries[of] = (at, member)
    return {of: member.member for of, (_, member) in tries.items()}


def _refuse_elsewhere(views: Sequence[PackView]) -> None:
    for view in views:
        if view.record.local or view.is_elsewhere:
            why = f"it is a job of {view.where_to_ask}"
            if view.record.local:
                why = "it ran without Slurm"
            raise UsageProblem(
                f"{view.shown_id} cannot be tried again: {why}", hint="submit the script again"
            )


def _choose(
    views: Sequence[PackView], job_id: str, numbers: set[int], request: RetryRequest
) -> list[tuple[PackView, MemberView]]:
    """The members to try again: of each the last try, where that ended as is asked for."""
    last: dict[str, tuple[PackView, MemberView]] = {}
    tries: dict[str, set[int]] = {}
    for view in views:
        for member in view.members:
            # Another submission's pack may have members of this one among its own.
            if member.state is MemberState.REQUEUED or member.member.job != job_id:
                continue
            if member.member.joined_as:
                continue
            first = member.retry_of or str(member.member)
            tries.setdefault(first, set()).add(member.member.number)
            if first not in last or last[first][1].member.number < member.member.number:
                last[first] = (view, member)
    chosen = []
    for first, (view, member) in last.items():
        if not tries[first] & numbers:
            continue
        if request.wants(view, member):
            chosen.append((view, member))
        elif any(s.ranges is not None and s.names(n) for s in request.choice.selections
                 for n in tries[first]):  # fmt: skip
            name = str(member.member)
            told = "" if name == first else f", the last try of {first},"
            note(f"{name}{told} is {member.state.value}: not tried again")
    return sorted(chosen, key=lambda entry: entry[1].member.number)


def _retry(
    session: Session,
    request: RetryRequest,
    job_id: str,
    views: Sequence[PackView],
    chosen: Sequence[tuple[PackView, MemberView]],
) -> list[str]:
    is_dry = request.options.flag("dry-run")
    # One that has joined a pack was a submission of its own, and becomes one again.
    is_part = not chosen[0][1].member.joined_as
    if is_part and not is_dry:
        _close_to_joiners(session, [view for view in views if view.shown_id == job_id])
        # Once more: a job may have joined until a moment ago.
        views = [view for view, _ in session.survey([Selection(job_id)], follow_all=False)]
    used = (m.member.number for view in views for m in view.members if m.member.job == job_id)
    number = max(used) if is_part else 0
    candidates, names, missing = [], {}, []
    for view, member in chosen:
        number += 1
        path = session.state.pack_path(view.record.pack_id)
        kept = read_stored_environment(path, member.files.number)
        if kept is None:
            missing.append(member)
        environment = read_given_environment() if kept is None else kept
        old = member.spec.job
        job = replace(
            old,
            number=number,
            retry_of=old.retry_of or str(member.member),
            came_together=len(chosen) > 1,
            own_id="",
            has_joined=False,
            depends=(),
            depends_on_any=False,
            slurm_dependency="",
            group=tuple(pair for pair in old.group if pair[0] not in SERVED),
        )
        script = read_stored_script(path, member.files.number)
        job = change_job(job, request.options.givens)
        candidates.append(Candidate(job, script, environment))
        names[f"{job_id}/{number}" if is_part else ""] = str(member.member)
    if missing:
        shown = ", ".join(str(member.member) for member in missing)
        note(f"{shown}: the environment was not kept; the present one is used instead")
    call = build_call(candidates, request.options)
    if is_dry:
        say(render_jobs(call))
        return list(names)
    policy = read_stored_policy(session.state, job_id) or choose_policy(call, session.settings)

    def answer(made: CallPlan, submitted: Sequence[Submitted]) -> None:
        nonlocal job_id, names
        session.tell_notices()
        if not is_part:
            job_id = submitted[0].job_id
            names = {job_id: names[""]}
        if request.options.flag("json"):
            value = build_answer_json(made, submitted, job_id=job_id)
            say(json.dumps({**value, "retries": names}))
        else:
            tell_id(request.options, job_id, _describe(names, submitted))

    submit_call(
        call,
        replace(policy, running_limit=None),
        session.settings,
        session.own_state,
        session.slurm,
        directory=os.getcwd(),  # noqa: PTH109  # a str, as the records want it
        answer=answer,
        part_of=job_id if is_part else "",
    )
    return list(names)


def _close_to_joiners(session: Session, views: Sequence[PackView]) -> None:
    """A number is given once in a submission, so no job joins its packs any more."""
    state = session.own_state
    for view in views:
        path = state.pack_path(view.record.pack_id)
        if view.record.closed or all(member.is_final for member in view.members):
            continue
        with hold_lock(path / "lock", LOCK_WAIT_S) as locked:
            newest = state.read_pack(view.record.pack_id)
            if not locked or newest is None:
                raise StateError(f"cannot close {view.job_id} to other jobs: it is being joined")
            write_record(path, replace(newest, closed=_CLOSED))


_NAMED_MOST = 3


def _describe(names: Mapping[str, str], submitted: Sequence[Submitted]) -> str:
    shown = [f"{new} tries {old} again" for new, old in list(names.items())[:_NAMED_MOST]]
    more = len(names) - len(shown)
    jobs = ", ".join(entry.job_id for entry in submitted[:_NAMED_MOST])
    text = ", ".join(shown) + (f" and {format_count(more, 'member')} more" if more else "")
    return f"{text}; in Slurm job{'s' if len(submitted) > 1 else ''} {jobs}"


HELP = """\
Usage: csub retry ID... [--failed] [--timeout] [--oom] [--where NAME=VALUE] [OPTIONS]

Submits members that did not complete again, as new members of the same submission: 4711/3 may
become 4711/41. The script, its arguments and its environment are those of the first submission,
whatever has changed since then. The last try of each member counts: a member that completed at its
second try is not tried a third time. A job that has joined a pack gets an id of its own by that.

  ID           4711 for all of a submission, 4711/3 or 4711/2-5,8 for some, last for the newest
  --failed     only members that failed, or whose node failed
  --timeout    only members that reached their time limit
  --oom        only members that ran out of host or GPU memory
  --where      only members with this parameter
  --dry-run    print the jobs, and submit nothing
  --wait       wait until they have ended

  --time, --mem, --cpus-per-task, --gpu-mem, and options of a whole pack such as --partition and
  --qos replace those of the first submission.

Name checkpoints after the variable SLURM_COLLOC_CHECKPOINT (4711_3): it is the same at each try.
With csub submit --retries=N, a job that fails is started again automatically.
"""
