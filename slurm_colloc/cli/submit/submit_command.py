"""`csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc import __version__
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.standard_streams import has_reader, is_one_stream
from slurm_colloc.cli.submit.join_first import choose_packs_to_join, tell_joined
from slurm_colloc.cli.submit.place_call import check_snapshot, place_call, prepare_call
from slurm_colloc.cli.submit.refuse_options import refuse_options_of_others
from slurm_colloc.cli.submit.submission_answer import answer
from slurm_colloc.cli.submit.submission_notes import (
    describe_nothing_shared,
    list_missing_directories,
)
from slurm_colloc.cli.submit.submit_help import PACK_HELP, PROBE_HELP, render_submit_help
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.degree.probe_window import choose_patience
from slurm_colloc.model.member import Selection
from slurm_colloc.planning.opened_pack import find_refusal
from slurm_colloc.settings import read_given_environment
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.plan.opening import choose_opening

if TYPE_CHECKING:
    from slurm_colloc.model.usage.profile import (
        ProfileRecord,
    )
    from slurm_colloc.submission.plan.plan_call import CallPlan


def run_submit(argv: Sequence[str], *, pack: bool = False, probe: bool = False) -> int:
    """Submit; the exit status.

    Args:
        argv: The arguments.
        pack: They are scripts that share.
        probe: The job runs alone, until its usage profile is known.
    """
    directory = _find_directory()
    early = _peek(argv, pack=pack, probe=probe)
    if early is not None:
        say(early)
        return 0
    call = collect_call(argv, read_given_environment(), directory, pack=pack)
    refuse_options_of_others(call.options, "submit")
    return run_call(call, directory, probe=probe)


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


def run_call(call: Call, directory: str, *, probe: bool = False, joins: bool = True) -> int:
    """Submit the jobs of a call; the exit status.

    Args:
        call: The call.
        directory: The current directory.
        probe: The job runs alone, until its usage profile is known.
        joins: A single job may join a pack that is there.
    """
    session = Session.open(asks_often=call.options.flag("wait"))
    if probe:
        from slurm_colloc.submission.plan.measured_calls import as_probe

        call = as_probe(call, session.settings)
    local = call.options.flag("local")
    on_terminal = sys.stdout.isatty()
    call, policy = prepare_call(call, session, local=local, asked_on_terminal=on_terminal)
    for text in () if is_one_stream() else list_missing_directories(call):
        note(text)
    which = "never"
    if joins:
        which = choose_packs_to_join(call, session, local=local, asked_on_terminal=on_terminal)
    opening = choose_opening(call, session.settings, joins=which, is_single=joins)
    if call.options.flag("dry-run") or call.options.flag("test-only"):
        from slurm_colloc.cli.submit.submission_answer import run_dry

        check_snapshot(call, session, directory)
        return run_dry(call, policy, session, directory, local=local, opening=opening)

    def tell(made: CallPlan, submitted: Sequence[Submitted], refusals: Sequence[str]) -> None:
        if local:
            answer(call.options, made, submitted)
        else:
            _tell(call, session, made, submitted, refusals)

    placed = place_call(call, policy, session, directory, joins=which, tell=tell, opening=opening)
    if placed.joined is None:
        return _finish(call, session, placed.submitted)
    tell_joined(call.options, placed.joined)
    if call.options.flag("wait"):
        from slurm_colloc.cli.change.wait_for_members import wait_for

        return wait_for(session, [Selection.parse(str(placed.joined.member))], as_sbatch=True)
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
        from slurm_colloc.cli.submit.depend_on_members import tell_packs

        tell_packs(session, call, submitted)
    answer(call.options, made, submitted)
    sys.stdout.flush()
    if has_reader() and not any(call.options.flag(n) for n in ("quiet", "explain", "verbose")):
        why = describe_nothing_shared(made)
        if call.options.flag("open"):
            why = find_refusal(made.plan) or why
        if why:
            note(why)


def _finish(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    if call.candidates[0].job.only_probe:
        return finish_probe(call, session, submitted)
    if call.options.flag("wait"):
        from slurm_colloc.cli.change.wait_for_members import wait_for

        return wait_for(session, [Selection(submitted[0].job_id)], as_sbatch=True)
    return 0


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
    if not call.options.flag("wait"):
        if is_for_people:
            longest_s = choose_patience(job).window_s
            note(
                f"it ends by itself when its rate is known, after {longest_s:g} s at most; "
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
