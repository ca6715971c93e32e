"""`csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from slurm_colloc import __version__
from slurm_colloc.cli.answering import answer
from slurm_colloc.cli.joining import find_room, may_join, tell_joined
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import Selection
from slurm_colloc.model.plan import Plan, SharingMode
from slurm_colloc.settings import read_given_environment
from slurm_colloc.submission.collect import Call, collect_call
from slurm_colloc.submission.policy import choose_share
from slurm_colloc.submission.submit import Submitted, submit_call

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
        from slurm_colloc.submission.probing import as_probe

        call = as_probe(call, session.settings)
    local = call.options.flag("local")
    call = prepare_call(call, session, local=local)
    if call.options.flag("dry-run") or call.options.flag("test-only"):
        from slurm_colloc.cli.dry_run import run_dry

        return run_dry(call, session, directory, local=local)
    state = session.own_state
    if may_join(call, session, local=local):
        return _join_or_submit(call, session, directory)
    if state.list_open():
        session.refresh()
    if local:
        from slurm_colloc.submission.local import submit_local

        plan, submitted = submit_local(call, session.settings, state, os.environ, directory)
        answer(call.options, plan, submitted)
    else:
        submitted = submit_call(
            call,
            session.settings,
            state,
            session.slurm,
            directory,
            answer=lambda plan, submitted: _tell(call, session, plan, submitted),
        )
    return _finish(call, session, submitted)


def prepare_call(call: Call, session: Session, *, local: bool) -> Call:
    """A call with members that it waits for found, and jobs that harmed others set apart."""
    if any("/" in dict(c.job.group).get("dependency", "") for c in call.candidates):
        from slurm_colloc.cli.depending import resolve_members

        call = resolve_members(session, call, local=local)
    # Path.is_dir() fails where it may not look; the state's own reader says so in a sentence.
    if os.path.isdir(session.state.root / "faults"):  # noqa: PTH112
        from slurm_colloc.submission.culprits import bar_culprits

        if choose_share(call, session.settings).planned is SharingMode.MPS:
            call, barred = bar_culprits(call, session.state.root)
            for text in barred:
                note(text)
    return call


def _join_or_submit(call: Call, session: Session, directory: str) -> int:
    """Join a pack that has room, or submit a new one; one csub of a user at a time.

    So scripts that are typed or started at once do not each open a pack of their own.
    """
    from slurm_colloc.store.locks import hold_lock

    state = session.own_state
    state.prepare()
    with hold_lock(state.root / "joining.lock", JOIN_WAIT_S):
        joined, refusals = find_room(call, session)
        if joined is None:

            def tell(plan: Plan, submitted: Sequence[Submitted]) -> None:
                if call.options.flag("explain") or call.options.flag("verbose"):
                    for text in refusals:
                        note(f"not joined: {text}")
                _tell(call, session, plan, submitted)

            submitted = submit_call(
                call,
                session.settings,
                state,
                session.slurm,
                directory,
                answer=tell,
                refusals=refusals,
            )
    if joined is None:
        return _finish(call, session, submitted)
    tell_joined(call.options, joined)
    if call.options.flag("wait"):
        from slurm_colloc.cli.waiting import wait_for

        return wait_for(session, [Selection.parse(str(joined.member))])
    return 0


def _tell(call: Call, session: Session, plan: Plan, submitted: Sequence[Submitted]) -> None:
    if any(candidate.job.depends for candidate in call.candidates):
        from slurm_colloc.cli.depending import tell_packs

        tell_packs(session, call, submitted)
    answer(call.options, plan, submitted)
    sys.stdout.flush()


def _finish(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    if call.candidates[0].job.only_probe:
        from slurm_colloc.cli.probing import finish_probe

        return finish_probe(call, session, submitted)
    if call.options.flag("wait"):
        from slurm_colloc.cli.waiting import wait_for

        return wait_for(session, [Selection(entry.job_id, None) for entry in submitted])
    return 0


def _peek(argv: Sequence[str]) -> str | None:
    """Answers that need no script: --version, --help, --usage."""
    for word in argv:
        if not word.startswith("-") or word == "--":
            return None
        if word in ("-V", "--version"):
            return f"csub {__version__}"
        if word in ("-h", "--help", "--usage"):
            from slurm_colloc.cli.help import render_submit_help

            return render_submit_help()
    return None
