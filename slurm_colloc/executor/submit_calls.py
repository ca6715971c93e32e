"""Calls and scripts from Python to Slurm, through the functions that csub itself goes through."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import CollocError, StateError, UsageProblem
from slurm_colloc.executor.call_files import PythonCall, build_script, note_submitted, write_calls
from slurm_colloc.executor.call_options import (
    build_words,
    describe_arguments,
    describe_function,
    find_parameters,
    name_function,
)
from slurm_colloc.executor.run_call import VARIABLE, find_checkpoint

if TYPE_CHECKING:
    from slurm_colloc.submission.jobs.call_jobs import Call
    from slurm_colloc.submission.packs.submit_batch import Submitted
    from slurm_colloc.submission.plan.plan_call import CallPlan

RESERVED = (
    "array", "dry-run", "explain", "export-file", "from", "json", "parsable", "quiet", "resume",
    "sample", "test-only", "verbose", "wait", "watch", "what-if", "wrap", "zip",
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
    """

    job_id: str
    numbers: tuple[int, ...]
    directory: Path | None
    is_array: bool


def check_options(options: Mapping[str, object]) -> None:
    """Refuse options that csub does not know, before anything is submitted.

    Raises:
        UsageProblem: One is unknown, has a wrong value, or is not an Executor's to give.
    """
    from slurm_colloc.settings import read_given_environment
    from slurm_colloc.slurm.options import parse_command_line
    from slurm_colloc.submission.jobs.learn_options import SiteOptions

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
        job_id, numbers = _place(call)
    except BaseException:
        # An interrupt, too: what was submitted is never taken for the calls of this directory.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    note_submitted(directory, job_id, numbers)
    return SubmittedCalls(job_id, numbers, directory, is_array)


def submit_script(script: str, arguments: Sequence[object], setup: CallSetup) -> SubmittedCalls:
    """Submit a script with its arguments, as `csub SCRIPT ARGUMENTS` does.

    Raises:
        CollocError: Nothing was submitted.
    """
    words = [*build_words(setup.options), script, *(str(argument) for argument in arguments)]
    job_id, numbers = _place(_collect(words))
    return SubmittedCalls(job_id, numbers, None, len(numbers) > 1)


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
        job = dataclasses.replace(
            candidate.job,
            script_name=name_function(made.function),
            arguments=arguments,
            parameters=find_parameters(arguments),
        )
        candidates.append(dataclasses.replace(candidate, environment=environment, job=job))
    return dataclasses.replace(call, candidates=tuple(candidates))


def _place(call: Call) -> tuple[str, tuple[int, ...]]:
    """Plan and submit, or join a pack where the options ask for that; the id and the numbers."""
    from slurm_colloc.cli.session import Session
    from slurm_colloc.cli.submit.depend_on_members import tell_packs
    from slurm_colloc.cli.submit.join_first import choose_packs_to_join
    from slurm_colloc.cli.submit.place_call import place_call, prepare_call

    session = Session.open()
    local = call.options.flag("local")
    call, policy = prepare_call(call, session, local=local, asked_on_terminal=False)
    joins = choose_packs_to_join(call, session, local=local, asked_on_terminal=False)

    def tell(_made: CallPlan, submitted: Sequence[Submitted], _refusals: Sequence[str]) -> None:
        if any(candidate.job.depends for candidate in call.candidates):
            tell_packs(session, call, submitted)

    placed = place_call(call, policy, session, os.getcwd(), joins=joins, tell=tell)  # noqa: PTH109
    if placed.joined is not None:
        return placed.joined.member.job, (placed.joined.member.number,)
    entries = placed.submitted
    numbers = sorted(number for entry in entries for pack in entry.members for number in pack)
    if not numbers:
        raise CollocError("nothing was submitted")
    return entries[0].job_id, tuple(numbers)
