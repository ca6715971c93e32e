"""Calls and scripts from Python to Slurm, through the functions that csub itself goes through.

Also: what csub's state and Slurm say of the members of jobs from Python.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import CollocError, MemberFailed, NotFound, StateError, UsageProblem
from slurm_colloc.executor.calls import (
    PythonCall,
    build_script,
    build_words,
    describe_arguments,
    describe_function,
    find_parameters,
    name_function,
    note_submitted,
    write_calls,
)
from slurm_colloc.executor.run_call import VARIABLE, find_checkpoint
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import MemberId, MemberState, Selection

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import MemberView, PackView
    from slurm_colloc.session.session import Session
    from slurm_colloc.submission.jobs.call_jobs import Call
    from slurm_colloc.submission.packs.submit_batch import Submitted
    from slurm_colloc.submission.plan.plan_call import CallPlan


RESERVED = (
    "array", "dry-run", "explain", "export-file", "from", "json", "parsable", "quiet", "resume",
    "sample", "stalls", "test-only", "verbose", "wait", "watch", "what-if", "wrap", "zip",
)  # fmt: skip
"""Options that an Executor gives itself, or that only a command line can answer."""

CHECKPOINT_SIGNAL = "B:USR2@90"
"""For callables that can go on later: 90 s before the member's limit, as submitit has it."""


@dataclass(frozen=True)
class CallSetup:
    """How calls are run.

    Attributes:
        folder: Where calls, results and outputs lie.
        options: Options of csub by name, as Python writes them.
        python: The members' interpreter.
        setup: Lines of shell before it starts.
        parallelism: How many calls of one submission run at once at most; 0 for no limit.
    """

    folder: Path
    options: Mapping[str, object]
    python: str = sys.executable
    setup: tuple[str, ...] = ()
    parallelism: int = 0


@dataclass(frozen=True)
class SubmittedCalls:
    """What became of calls.

    Attributes:
        job_id: The submission, `4711`.
        numbers: Its members' numbers, one a call.
        directory: Where results are written; None for a script.
        is_array: The members are tasks of an array.
        joined_as: The number of its own of a job that has joined a pack; empty for others.
    """

    job_id: str
    numbers: tuple[int, ...]
    directory: Path | None
    is_array: bool
    joined_as: str = ""


def check_options(options: Mapping[str, object]) -> None:
    """Refuse options that csub does not know, before anything is submitted.

    Raises:
        UsageProblem: One is unknown, has a wrong value, or is not an Executor's to give.
    """
    from slurm_colloc.settings import read_given_environment
    from slurm_colloc.slurm.options import parse_command_line
    from slurm_colloc.submission.jobs.directives import SiteOptions

    words = build_words(options)
    line = SiteOptions(read_given_environment()).parse(
        lambda site: parse_command_line(words, site_options=site)
    )
    for given in line.values:
        if given.option.canonical_name in RESERVED:
            name = given.option.name
            raise UsageProblem(
                f"--{name} is not for jobs from Python",
                hint="map and map_array submit an array"
                if name == "array"
                else "map and map_array give each call its values"
                if name in ("from", "sample", "zip")
                else "it is for the command line",
            )
    if line.words:
        raise UsageProblem(f"{line.words[0]!r} is not an option")


def submit_functions(calls: Sequence[PythonCall], setup: CallSetup) -> SubmittedCalls:
    """Submit calls as one submission: several are an array, whose tasks share GPUs.

    Raises:
        CollocError: Nothing was submitted.
    """
    function = calls[0].function
    is_array = len(calls) > 1
    options = dict(setup.options)
    if not {"job_name", "job-name"} & options.keys():
        options["job_name"] = name_function(function)
    if "output" not in options:
        options["output"] = str(setup.folder / ("%A_%a.out" if is_array else "%j.out"))
    if "signal" not in options and any(find_checkpoint(call.function) for call in calls):
        options["signal"] = CHECKPOINT_SIGNAL
    words = build_words(options)
    if is_array:
        at_once = f"%{setup.parallelism}" if setup.parallelism else ""
        words.append(f"--array=0-{len(calls) - 1}{at_once}")
    described = dict.fromkeys(describe_function(call.function) for call in calls)
    script = build_script(", ".join(described), setup.python, setup.setup)
    directory = write_calls(setup.folder, calls, name=name_function(function), script=script)
    try:
        call = _collect([*words, str(directory / "call.sh")])
        if any(candidate.script != script for candidate in call.candidates):
            raise StateError(f"somebody has put another directory in the place of {directory}")
        call = _with_calls(call, calls, directory / ("%a" if is_array else "0"))
        job_id, numbers, joined_as = _place(call)
    except BaseException:
        # An interrupt, too: what was submitted is never taken for the calls of this directory.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    note_submitted(directory, job_id, numbers)
    return SubmittedCalls(job_id, numbers, directory, is_array, joined_as)


def submit_script(script: str, arguments: Sequence[object], setup: CallSetup) -> SubmittedCalls:
    """Submit a script with its arguments, as `csub SCRIPT ARGUMENTS` does.

    Raises:
        CollocError: Nothing was submitted.
    """
    words = [*build_words(setup.options), script, *(str(argument) for argument in arguments)]
    job_id, numbers, joined_as = _place(_collect(words))
    return SubmittedCalls(job_id, numbers, None, len(numbers) > 1, joined_as)


def _collect(words: Sequence[str]) -> Call:
    from slurm_colloc.settings import read_given_environment
    from slurm_colloc.submission.jobs.call_jobs import collect_call

    return collect_call(words, read_given_environment(), str(Path.cwd()), pack=False)


def _with_calls(call: Call, calls: Sequence[PythonCall], path: Path) -> Call:
    """Each job with the arguments of its call, for tables and usage profiles, and with its file."""
    # One for all tasks: they are linked, not copied, in the state.
    environment = {**call.candidates[0].environment, VARIABLE: str(path)}
    candidates = []
    for candidate, made in zip(call.candidates, calls, strict=True):
        arguments = describe_arguments(made.function, made.args, made.kwargs)
        job = replace(
            candidate.job,
            script_name=name_function(made.function),
            arguments=arguments,
            parameters=find_parameters(arguments),
        )
        candidates.append(replace(candidate, environment=environment, job=job))
    return replace(call, candidates=tuple(candidates))


def _place(call: Call) -> tuple[str, tuple[int, ...], str]:
    """Plan and submit, or join a pack where the options ask for that.

    Returns:
        The submission's id, its members' numbers, and the number as which it has joined.
    """
    from slurm_colloc.session.depend_on_members import tell_packs
    from slurm_colloc.session.place_call import place_call, prepare_call
    from slurm_colloc.session.session import Session

    session = Session.open()
    local = call.options.flag("local")
    call, policy, joins = prepare_call(call, session, local=local, asked_on_terminal=False)

    def tell(_made: CallPlan, submitted: Sequence[Submitted], _refusals: Sequence[str]) -> None:
        if any(candidate.job.depends for candidate in call.candidates):
            tell_packs(session, call, submitted)

    placed = place_call(call, policy, session, os.getcwd(), joins=joins, tell=tell)  # noqa: PTH109
    if placed.joined is not None:
        member = placed.joined.member
        return member.job, (member.number,), member.joined_as
    entries = placed.submitted
    numbers = sorted(number for entry in entries for pack in entry.members for number in pack)
    if not numbers:
        raise CollocError("nothing was submitted")
    return entries[0].job_id, tuple(numbers), ""


# ---- What csub's state and Slurm say of the members of jobs from Python --------------------------


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
    from slurm_colloc.session.session import Session
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
    for view, member in _survey(session, Selection.of_each(sorted(wanted))):
        if member.member not in wanted:
            continue
        if member.moved_to is None:
            found[member.member] = _describe(view, member)
            continue
        one = [Selection.of(member.member.job, (member.member.number,))]
        for later, followed in session.survey(one):
            found[member.member] = _describe(later, followed[0])
    return found


def _survey(session: Session, wanted: Sequence[Selection]) -> list[tuple[PackView, MemberView]]:
    """Members of submissions, under the names that they were submitted with."""
    try:
        views = session.survey(wanted, follow_all=False)
    except NotFound:
        if len(wanted) == 1:
            return []
        # One of them is not kept any more.
        return [pair for one in wanted for pair in _survey(session, [one])]
    return [(view, member) for view, members in views for member in members]


def build_failure(seen: SeenMember) -> MemberFailed:
    """The exception of a member that has ended without a result."""
    from slurm_colloc.report.member_views import read_last_line

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
    from slurm_colloc.report.member_views import find_output_owner
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
