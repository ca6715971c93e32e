"""`csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...`.

Also: the help of what submits: `csub submit --help`, `csub pack --help`, `csub probe --help`; what
a submission tells a beginner: directories that are not there, and why nothing shares; options that
mean something to one of csub's commands, refused where another is called.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc import __version__
from slurm_colloc.cli.answer import answer, run_dry, tell_joined
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.measurement import choose_patience
from slurm_colloc.model.member import Selection
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.session.place_call import (
    check_snapshot,
    place_call,
    prepare_call,
)
from slurm_colloc.session.say_collisions import say_collisions
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.session.standard_streams import has_reader, is_one_stream
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern, Options
from slurm_colloc.store.atomic_files import find_missing_directories
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.plan.plan_call import CallPlan, as_probe, choose_opening

if TYPE_CHECKING:
    from slurm_colloc.model.usage_profile import ProfileRecord


# ---- The help of what submits: `csub submit --help`, `csub pack --help`, `csub probe --help` -----

_HEAD = """\
Usage: csub [OPTIONS] SCRIPT [ARGUMENTS]         as with sbatch
       csub pack [OPTIONS] SCRIPT...             scripts that share a GPU
       csub sweep [OPTIONS] SCRIPT --lr 0.1,0.2  one job for each combination of values
       csub batch [OPTIONS] TABLE                one job for each row of a table
       csub retry ID [OPTIONS]                   again what did not complete
       csub probe [OPTIONS] SCRIPT [ARGUMENTS]   alone, until its usage profile is known
       csub plan [OPTIONS] SCRIPT [ARGUMENTS]    show what would share, and why; submit nothing
       csub queue, show, logs, why, cancel, shell, ...: see csub --help

csub takes the options of sbatch (22.05 to 26.05), #SBATCH lines and SBATCH_* variables. Jobs of one
call share a GPU: the tasks of --array, the scripts of pack.
"""

_SECTIONS = (
    (Concern.MEMBER, "These apply to each member separately:"),
    (Concern.SHAPE, "Jobs with one GPU, one node and one task can share; others run alone:"),
    (Concern.GROUP, "Jobs share a pack only if these are equal:"),
    (Concern.ALONE, "A job with one of these runs alone:"),
    (Concern.CALL, "These apply to this call:"),
    (Concern.REFUSED, "Refused:"),
)


def render_submit_help() -> str:
    """The text of `csub submit --help`."""
    import textwrap

    lines = [_HEAD, "csub's own options (also on #CSUB lines):"]
    for option in OWN_OPTIONS:
        value = "" if option.argument is Argument.NONE else "=VALUE"
        lines += textwrap.wrap(
            f"{f'--{option.name}{value}':<22} {option.reason}", 98,
            initial_indent="  ", subsequent_indent=" " * 25, break_on_hyphens=False,
        )  # fmt: skip
    for concern, title in _SECTIONS:
        names = [
            f"--{option.name}"
            for option in SBATCH_OPTIONS
            if option.concern is concern and option.alias_of is None
        ]
        lines += ["", title]
        lines += textwrap.wrap(
            " ".join(names), 92, initial_indent="  ", subsequent_indent="  ",
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


PACK_HELP = """\
Usage: csub pack [OPTIONS] SCRIPT...

Submits several scripts as one submission whose jobs share GPUs. A script with arguments is one
quoted word:

  csub pack --gres=gpu:1 a.sh 'b.sh --lr 0.1' 'b.sh --lr 0.2'

  --degree=N          how many run on a GPU at the same time; by default this is measured
  --pack-size=N       how many members a pack has; those beyond the degree wait for a place
  --gpus-per-pack=N   spread them over N GPUs of one Slurm job; node means all GPUs of a node
  --gpu-mem=10G       the GPU memory that each needs, so that different scripts fit together
  --share=MODE        auto, mps, timeslice or exclusive; mps! allows no fallback
  --dry-run           print which would share, and submit nothing; csub plan pack says why

All other options are those of csub submit. They apply to each script unless its #SBATCH and #CSUB
lines say otherwise. To submit one script many times, use csub sweep: csub sweep --help.
"""

PROBE_HELP = """\
Usage: csub probe [OPTIONS] SCRIPT [ARGUMENTS]

Runs a job alone on one GPU until its usage profile is known, for some minutes at most. The profile
tells csub which jobs can share a GPU with it, and how much slower than alone it runs. The job is
then ended and its work is lost.

  --wait          wait for it, and print the usage profile; exit status 1 if there is none
  --stalls        instead, tell what holds the training up: GPU, exchange between GPUs, copies,
                  decoding or disk; it waits for the job, and exit status 1 says that this could
                  not be told
  --array=N       probe task N; its profile is used for the other tasks as relatives

Then: csub profile show NAME, csub plan SCRIPT. All other options are those of csub submit.
"""

BATCH_HELP = """\
Usage: csub batch [OPTIONS] TABLE

Submits a job for each row of TABLE, as one submission whose jobs share GPUs.

  *.csv, *.tsv             a header, and a row for each job
  *.jsonl                  one JSON object per line
  *.yaml, *.toml, *.json   a list of rows; values outside the list apply to all rows
  any other name, or -     a list of commands, one per line (as for GNU parallel and disBatch)

  columns script, arguments  what runs; or
  column command             a command for a shell
  columns named like an option (time, mem, gres, job-name, gpu-mem, ...) set that option
  any other column           a parameter: {lr} in arguments, command, script, job-name, output
                             or error stands for its value

  --resume    submit only the rows that are neither done nor under way
  --watch     keep running, and submit rows that are added later; Ctrl-C stops csub, not the jobs
  --dry-run   print the jobs, and submit nothing

Options before TABLE apply to each row that does not set them: csub submit --help.
Tables for radT (Experiment, Workload, File, ...) are accepted as they are: rows of one workload
share a GPU and start at the same moment; csub writes their status to TABLE.status.csv.
"""


# ----
# What a submission tells a beginner: directories that are not there, and why nothing shares.


def list_missing_directories(call: Call) -> list[str]:
    """Directories that jobs name and that are not on this machine, a sentence each, once.

    They are no error: a job may wait for another that makes them, and nodes may see more.
    """
    jobs = (candidate.job for candidate in call.candidates)
    # The tasks of an array name the same, and to look may take a while.
    asked = dict.fromkeys((job.script_name, job.directory, _list_outputs(job)) for job in jobs)
    return list(
        dict.fromkeys(
            f"{script}: {text} here; unless it is made in time, the job fails"
            for script, directory, patterns in asked
            for text in find_missing_directories(directory, patterns)
        )
    )


def _list_outputs(job: Job) -> tuple[tuple[str, str], ...]:
    named = (("output", job.output), ("error", job.error))
    return tuple((option, pattern) for option, pattern in named if pattern is not None)


def describe_nothing_shared(made: CallPlan) -> str:
    """Why no job of a planned call shares a GPU; empty where one does, or that was asked for."""
    if made.policy.mode is SharingMode.EXCLUSIVE or made.policy.degree_is_asked:
        return ""
    packs = made.plan.packs
    if any(len(pack.members) > 1 for pack in packs):
        return ""
    if all(job.gpus == 0 for job in made.jobs):
        return "no GPU is asked for (--gres=gpu:1), so there is nothing to share"
    if len(packs) < 2:
        return ""
    told = (pack.sharing.alone or pack.sharing.full for pack in packs)
    why = next(filter(None, told), "")
    return f"none of these jobs shares a GPU: {why}" if why else ""


# ---- Options that mean something to one of csub's commands, refused where another is called ------

_OF_ONE_COMMAND = {
    "zip": "sweep", "sample": "sweep", "from": "sweep",
    "resume": "batch", "watch": "batch", "stalls": "probe",
}  # fmt: skip


def refuse_options_of_others(options: Options, command: str, *, also: str = "") -> None:
    """Refuse options that mean something to another of csub's commands alone.

    Args:
        options: The options of the call.
        command: The command.
        also: Another whose options it takes; empty for none.

    Raises:
        UsageProblem: One was given.
    """
    if "plan" not in (command, also) and options.flag("what-if"):
        raise UsageProblem(
            f"{options.origin('what-if')}: --what-if submits nothing",
            hint="csub plan --what-if=... shows it",
        )
    for name, its_command in _OF_ONE_COMMAND.items():
        if its_command not in (command, also) and options.flag(name):
            raise UsageProblem(
                f"{options.origin(name)}: --{name} is an option of csub {its_command} alone",
                hint=f"csub {its_command} --help",
            )


# ---- `csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...` ------


def run_submit(
    argv: Sequence[str], *, pack: bool = False, probe: bool = False, has_links: bool = False
) -> int:
    """Submit; the exit status.

    Args:
        argv: The arguments.
        pack: They are scripts that share.
        probe: The job runs alone, until its usage profile is known.
        has_links: It was called as sbatch, and Slurm's other commands are csub's, too.
    """
    directory = _find_directory()
    early = _peek(argv, pack=pack, probe=probe)
    if early is not None:
        say(early)
        return 0
    call = collect_call(argv, read_given_environment(), directory, pack=pack)
    refuse_options_of_others(call.options, "probe" if probe else "submit")
    return run_call(call, directory, probe=probe, has_links=has_links)


def _find_directory() -> str:
    """The current directory, a str as the records want it.

    Raises:
        UsageProblem: It was removed.
    """
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise UsageProblem(
            f"the current directory cannot be used: {error.strerror}",
            hint="change into one that is there",
        ) from error


def run_call(
    call: Call, directory: str, *, probe: bool = False, joins: bool = True, has_links: bool = False
) -> int:
    """Submit the jobs of a call; the exit status.

    Args:
        call: The call.
        directory: The current directory.
        probe: The job runs alone, until its usage profile is known.
        joins: A single job may join a pack that is there.
        has_links: See `run_submit`.
    """
    session = Session.open(asks_often=call.options.flag("wait"))
    if probe:
        call = as_probe(call, session.settings)
    local = call.options.flag("local")
    on_terminal = sys.stdout.isatty()
    call, policy, which = prepare_call(
        call, session, local=local, asked_on_terminal=on_terminal, has_links=has_links
    )
    for text in () if is_one_stream() else list_missing_directories(call):
        note(text)
    which = which if joins else "never"
    opening = choose_opening(call, session.settings, joins=which, is_single=joins)
    call = say_collisions(call, policy, session, may_meet=which != "never" or opening is not None)
    if call.options.flag("dry-run") or call.options.flag("test-only"):
        check_snapshot(call, directory)
        return run_dry(call, policy, session, directory, local=local, joins=which, opening=opening)

    def tell(made: CallPlan, submitted: Sequence[Submitted], refusals: Sequence[str]) -> None:
        if local:
            answer(call.options, made, submitted)
        else:
            _tell(call, session, made, submitted, refusals)

    placed = place_call(call, policy, session, directory, joins=which, tell=tell, opening=opening)
    if placed.joined is not None:
        tell_joined(call.options, placed.joined)
        chosen = Selection.parse(str(placed.joined.member))
    elif call.candidates[0].job.only_probe:
        return finish_probe(call, session, placed.submitted)
    else:
        chosen = Selection(placed.submitted[0].job_id)
    if call.options.flag("wait"):
        from slurm_colloc.cli.hold_and_wait import wait_for

        return wait_for(session, [chosen], as_sbatch=True)
    return 0


def _tell(
    call: Call,
    session: Session,
    made: CallPlan,
    submitted: Sequence[Submitted],
    refusals: Sequence[str],
) -> None:
    if call.options.flag("explain") or call.options.flag("verbose"):
        for text in refusals:
            note(f"not joined: {text}")
    if any(candidate.job.depends for candidate in call.candidates):
        from slurm_colloc.session.depend_on_members import tell_packs

        tell_packs(session, call, submitted)
    answer(call.options, made, submitted)
    sys.stdout.flush()
    if has_reader() and not any(call.options.flag(n) for n in ("quiet", "explain", "verbose")):
        why = describe_nothing_shared(made)
        if call.options.flag("open"):
            why = "".join(pack.sharing.not_opened for pack in made.plan.packs[:1]) or why
        if why:
            note(why)


def _peek(argv: Sequence[str], *, pack: bool, probe: bool) -> str | None:
    """Answers that need no script: --version, --help, --usage."""
    for word in argv:
        if not word.startswith("-") or word == "--":
            return None
        if word in ("-V", "--version"):
            return f"csub {__version__}"
        if word in ("-h", "--help", "--usage"):
            return PACK_HELP if pack else PROBE_HELP if probe else render_submit_help()
    return None


PROFILE_WAIT_S = 45.0
"""The runner writes what was measured once the member has ended, the usage profile last."""


def finish_probe(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    """Say what comes next; with `--wait`, wait for it and show the usage profile.

    Returns:
        The exit status: 0; 1 where the job was waited for and has left no usage profile.
    """
    job = call.candidates[0].job
    is_for_people = not any(call.options.flag(name) for name in ("json", "parsable", "quiet"))
    if job.tells_stalls:
        return _finish_stalls(call, session, submitted[0])
    if not call.options.flag("wait"):
        if is_for_people:
            longest_s = choose_patience(job).window_s
            note(
                f"it ends by itself when its rate is known, after {longest_s:g} s at most; "
                f"then: csub profile show {job.name}"
            )
        return 0
    from slurm_colloc.cli.hold_and_wait import wait_for
    from slurm_colloc.store.profiles import compute_signature

    job_id, pack_id = submitted[0].job_id, submitted[0].records[0].pack_id
    chosen = [Selection(job_id, None)]
    wait_for(session, chosen)
    signature = compute_signature(call.candidates[0].script, job)
    has_run = any(m.record and m.record.starts for _, ms in session.survey(chosen) for m in ms)
    deadline = time.monotonic() + (PROFILE_WAIT_S if has_run else 0.0)
    while (found := _find(session.state.root, signature, pack_id)) is None:
        if time.monotonic() >= deadline:
            sys.stdout.flush()
            note(f"it has left no usage profile; csub report {job_id} says why")
            return 1
        time.sleep(0.2)
    if is_for_people:
        from slurm_colloc.report.profile_view import render_profile
        from slurm_colloc.report.terminal_tables import choose_width

        say(render_profile(found, choose_width()))
    return 0


def _finish_stalls(call: Call, session: Session, submitted: Submitted) -> int:
    """Wait for a probe, and say what holds the training up; 1 where it could not be told."""
    from slurm_colloc.cli.hold_and_wait import wait_for
    from slurm_colloc.report.stalls_view import read_stalls, render_stalls

    wait_for(session, [Selection(submitted.job_id, None)])
    stalls, problem = read_stalls(session.state.root / "packs" / submitted.records[0].pack_id)
    if stalls is None:
        sys.stdout.flush()
        note(f"what holds it up is not told: {problem}")
        return 1
    if not any(call.options.flag(name) for name in ("json", "parsable", "quiet")):
        say(render_stalls(stalls))
    return 0


def _find(root: Path, signature: str, pack_id: str) -> ProfileRecord | None:
    """The usage profile that a pack has made or added to; None while there is none."""
    from slurm_colloc.store.profiles import list_profiles

    for record in list_profiles(root)[0]:
        runs = (run.partition("/")[0] for run in record.seen)
        if record.signature == signature and pack_id in runs:
            return record
    return None
