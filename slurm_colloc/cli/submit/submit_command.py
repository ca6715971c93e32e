"""`csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...`."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc import __version__
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.submit.join_first import (
    choose_other_packs,
    choose_packs_to_join,
    find_room,
    tell_joined,
)
from slurm_colloc.cli.submit.submission_answer import answer
from slurm_colloc.cli.submit.submission_notes import (
    describe_nothing_shared,
    is_watched,
    list_missing_directories,
)
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.degree.probe_window import choose_patience
from slurm_colloc.model.member import Selection
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.learned.due_summaries import FOLDER
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.submit import submit_call

if TYPE_CHECKING:
    from slurm_colloc.model.profile import (
        ProfileRecord,
    )
    from slurm_colloc.submission.plan.plan_call import CallPlan

JOIN_WAIT_S = 30.0


def run_submit(argv: Sequence[str], *, pack: bool = False, probe: bool = False) -> int:
    """Submit; the exit status.

    Args:
        argv: The arguments.
        pack: They are scripts that share.
        probe: The job runs alone, until its usage profile is known.
    """
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    early = _peek(argv)
    if early is not None:
        say(early)
        return 0
    call = collect_call(argv, read_given_environment(), directory, pack=pack)
    if call.options.flag("what-if"):
        raise UsageProblem(
            f"{call.options.origin('what-if')}: --what-if submits nothing",
            hint="csub plan --what-if=... shows it",
        )
    session = Session.open(asks_often=call.options.flag("wait"))
    if probe:
        from slurm_colloc.submission.plan.call_policy import as_probe

        call = as_probe(call, session.settings)
    local = call.options.flag("local")
    call, policy = prepare_call(call, session, local=local)
    for text in list_missing_directories(call):
        note(text)
    if call.options.flag("dry-run") or call.options.flag("test-only"):
        from slurm_colloc.cli.submit.submission_answer import run_dry

        return run_dry(call, policy, session, directory, local=local)
    state = session.own_state
    which = choose_packs_to_join(call, session, local=local)
    if which != "never":
        return _join_or_submit(call, policy, session, directory, running=which == "auto")
    if state.list_open():
        session.refresh()
    if local:
        from slurm_colloc.submission.local_packs import submit_local

        made, submitted = submit_local(
            call, policy, session.settings, state, environ=os.environ, directory=directory
        )
        answer(call.options, made, submitted)
    else:
        submitted = submit_call(
            call,
            policy,
            session.settings,
            state,
            session.slurm,
            directory=directory,
            answer=lambda made, submitted: _tell(call, session, made, submitted),
        )
    return _finish(call, session, submitted)


def prepare_call(call: Call, session: Session, *, local: bool) -> tuple[Call, Policy]:
    """A call with members that it waits for found, and jobs that harmed others set apart.

    Returns:
        The call, and its policy, which holds for all that becomes of it.
    """
    if any(dict(c.job.group).get("dependency") for c in call.candidates):
        from slurm_colloc.cli.submit.depend_on_members import resolve_members

        call = resolve_members(session, call, local=local)
    # What packs that have ended show of these jobs counts in the plan.
    if isinstance(session.state, State) and os.path.isdir(session.state.root / FOLDER):  # noqa: PTH112
        from slurm_colloc.cli.await_summaries import prepare_summaries

        prepare_summaries(session.state, session.settings)
    policy = dataclasses.replace(
        choose_policy(call, session.settings), join=choose_other_packs(call, session, local=local)
    )
    # Path.is_dir() fails where it may not look; the state's own reader says so in a sentence.
    if os.path.isdir(session.state.root / "faults"):  # noqa: PTH112
        from slurm_colloc.submission.plan.known_jobs import bar_culprits

        if policy.mode is SharingMode.MPS:
            call, barred = bar_culprits(call, session.state.root)
            # Where they may have walls the plan says what becomes of them.
            for text in () if policy.may_cut else barred:
                note(text)
    return call, policy


def _join_or_submit(
    call: Call, policy: Policy, session: Session, directory: str, *, running: bool
) -> int:
    """Join a pack that has room, or submit a new one; one csub of a user at a time.

    So scripts that are typed or started at once do not each open a pack of their own.
    """
    from slurm_colloc.store.file_locks import hold_lock

    state = session.own_state
    state.prepare()
    with hold_lock(state.root / "joining.lock", JOIN_WAIT_S):
        joined, refusals = find_room(call, policy, session, running=running)
        if joined is None:

            def tell(made: CallPlan, submitted: Sequence[Submitted]) -> None:
                if call.options.flag("explain") or call.options.flag("verbose"):
                    for text in refusals:
                        note(f"not joined: {text}")
                _tell(call, session, made, submitted)

            submitted = submit_call(
                call,
                policy,
                session.settings,
                state,
                session.slurm,
                directory=directory,
                answer=tell,
                refusals=refusals,
            )
    if joined is None:
        return _finish(call, session, submitted)
    tell_joined(call.options, joined)
    if call.options.flag("wait"):
        from slurm_colloc.cli.change.wait_for_members import wait_for

        return wait_for(session, [Selection.parse(str(joined.member))])
    return 0


def _tell(call: Call, session: Session, made: CallPlan, submitted: Sequence[Submitted]) -> None:
    if any(candidate.job.depends for candidate in call.candidates):
        from slurm_colloc.cli.submit.depend_on_members import tell_packs

        tell_packs(session, call, submitted)
    answer(call.options, made, submitted)
    sys.stdout.flush()
    if is_watched() and not any(call.options.flag(n) for n in ("quiet", "explain", "verbose")):
        why = describe_nothing_shared(made)
        if why:
            note(why)


def _finish(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    if call.candidates[0].job.only_probe:
        return finish_probe(call, session, submitted)
    if call.options.flag("wait"):
        from slurm_colloc.cli.change.wait_for_members import wait_for

        return wait_for(session, [Selection(submitted[0].job_id)])
    return 0


def _peek(argv: Sequence[str]) -> str | None:
    """Answers that need no script: --version, --help, --usage."""
    for word in argv:
        if not word.startswith("-") or word == "--":
            return None
        if word in ("-V", "--version"):
            return f"csub {__version__}"
        if word in ("-h", "--help", "--usage"):
            return render_submit_help()
    return None


_HEAD = """\
Usage: csub [OPTIONS] SCRIPT [ARGUMENTS]      as with sbatch
       csub pack [OPTIONS] SCRIPT...          scripts that share a GPU
       csub probe [OPTIONS] SCRIPT [ARGUMENTS]   alone, until its usage profile is known
       csub plan [OPTIONS] SCRIPT [ARGUMENTS]  what would share, and why; submits nothing
       csub queue, show, logs, why, cancel, shell, ... see csub --help

Takes the options of sbatch (22.05 to 26.05), its #SBATCH lines and SBATCH_* variables. Jobs of
one call share a GPU: the tasks of --array, the scripts of pack.
"""

_SECTIONS = (
    (Concern.MEMBER, "Done for each member by itself:"),
    (Concern.SHAPE, "Jobs with one GPU, one node and one task can share; others run alone:"),
    (Concern.GROUP, "Jobs share a pack only where these are equal:"),
    (Concern.ALONE, "A job with one of these runs alone:"),
    (Concern.CALL, "About this call:"),
    (Concern.REFUSED, "Refused:"),
)


def render_submit_help() -> str:
    """The text of `csub submit --help`."""
    lines = [_HEAD, "csub's own options (also on #CSUB lines):"]
    for option in OWN_OPTIONS:
        value = "" if option.argument is Argument.NONE else "=VALUE"
        lines.append(f"  {f'--{option.name}{value}':<22} {option.reason}")
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


PROFILE_WAIT_S = 45.0
"""The runner writes what was measured once the member has ended, the usage profile last."""


def finish_probe(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    """Say what comes next; with `--wait`, wait for it and show the usage profile.

    Returns:
        The exit status: 0; 1 where the job was waited for and has left no usage profile.
    """
    job = call.candidates[0].job
    is_for_people = not any(call.options.flag(name) for name in ("json", "parsable", "quiet"))
    if not call.options.flag("wait"):
        if is_for_people:
            longest_s = choose_patience(job).window_s
            note(
                f"it ends by itself once its rate is known, after {longest_s:g} s at most; "
                f"then: csub profile show {job.name}"
            )
        return 0
    from slurm_colloc.cli.change.wait_for_members import wait_for
    from slurm_colloc.store.learned.faults import compute_signature

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


def _find(root: Path, signature: str, pack_id: str) -> ProfileRecord | None:
    """The usage profile that a pack has made or added to; None while there is none."""
    from slurm_colloc.store.learned.profiles import list_profiles

    for record in list_profiles(root)[0]:
        runs = (run.partition("/")[0] for run in record.seen)
        if record.signature == signature and pack_id in runs:
            return record
    return None
