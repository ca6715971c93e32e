"""`csub [options] SCRIPT [arguments]`, `csub pack [options] SCRIPT...`, `csub probe ...`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc import __version__
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.model.member import Selection
from slurm_colloc.model.plan import Plan, SharingMode
from slurm_colloc.model.sharing import ShareRequest
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import Options
from slurm_colloc.submission.collect import Call, collect_call
from slurm_colloc.submission.planned import make_plan
from slurm_colloc.submission.policy import choose_join, choose_share
from slurm_colloc.submission.submit import Submitted, submit_call

if TYPE_CHECKING:
    from slurm_colloc.model.job import Job
    from slurm_colloc.submission.joining import Joined
    from slurm_colloc.submission.request import Batch

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
        return _run_dry(call, session, directory, local=local)
    may_join = not local and session.settings.state_shared and _may_join(call, session)
    if may_join:
        return _join_or_submit(call, session, directory)
    if session.state.list_open():
        session.refresh()
    if local:
        from slurm_colloc.submission.local import submit_local

        plan, submitted = submit_local(call, session.settings, session.state, os.environ, directory)
        _answer(call.options, plan, submitted)
    else:
        submitted = submit_call(
            call,
            session.settings,
            session.state,
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


def _may_join(call: Call, session: Session) -> bool:
    if call.candidates[0].job.only_probe:
        return False
    if len(call.candidates) != 1 or call.array is not None:
        if call.options.flag("join") and call.options.text("join") != "never":
            raise UsageProblem(
                "--join is for a single script", hint="the jobs of --array and csub pack share"
            )
        return False
    return choose_join(call, session.settings, on_terminal=sys.stdout.isatty()) != "never"


def _join_or_submit(call: Call, session: Session, directory: str) -> int:
    """Join a pack that has room, or submit a new one; one csub of a user at a time.

    So scripts that are typed or started at once do not each open a pack of their own.
    """
    from slurm_colloc.store.locks import hold_lock

    session.state.prepare()
    with hold_lock(session.state.root / "joining.lock", JOIN_WAIT_S):
        joined, refusals = _find_room(call, session)
        if joined is None:

            def answer(plan: Plan, submitted: Sequence[Submitted]) -> None:
                if call.options.flag("explain") or call.options.flag("verbose"):
                    for text in refusals:
                        note(f"not joined: {text}")
                _tell(call, session, plan, submitted)

            submitted = submit_call(
                call,
                session.settings,
                session.state,
                session.slurm,
                directory,
                answer=answer,
                refusals=refusals,
            )
    if joined is None:
        return _finish(call, session, submitted)
    from slurm_colloc.cli.joined import tell_joined

    tell_joined(call.options, joined)
    if call.options.flag("wait"):
        from slurm_colloc.cli.waiting import wait_for

        return wait_for(session, [Selection.parse(str(joined.member))])
    return 0


def _find_room(
    call: Call, session: Session, *, only_plan: bool = False
) -> tuple[Joined | None, tuple[str, ...]]:
    """Join a pack, or only find it; and why others were not joined."""
    jobs = session.refresh() if session.state.list_open() else None
    if not jobs:
        return None, ()
    from slurm_colloc.submission.joining import join_open_pack

    return join_open_pack(
        call,
        session.settings,
        session.state,
        session.slurm,
        packs=session.open_packs,
        jobs=jobs,
        running=choose_join(call, session.settings, on_terminal=True) == "auto",
        only_plan=only_plan,
    )


def _tell(call: Call, session: Session, plan: Plan, submitted: Sequence[Submitted]) -> None:
    if any(candidate.job.depends for candidate in call.candidates):
        from slurm_colloc.cli.depending import tell_packs

        tell_packs(session, call, submitted)
    _answer(call.options, plan, submitted)
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


def _answer(options: Options, plan: Plan, submitted: Sequence[Submitted]) -> None:
    if options.flag("json"):
        say(json.dumps(build_answer_json(plan, submitted)))
        return
    for entry in submitted:
        if options.flag("parsable"):
            say(entry.job_id)
        elif not options.flag("quiet"):
            say(f"Submitted batch job {entry.job_id} ({describe(entry)})")
    if options.flag("explain") or options.flag("verbose"):
        for text in explain(plan, submitted):
            note(text)


def describe(entry: Submitted) -> str:
    """`members 4711/1-4711/3 in 1 pack, timeslice`."""
    numbers = sorted(number for pack in entry.members for number in pack)
    modes = dict.fromkeys(
        ShareRequest.parse(record.share).describe_mode(record.mode) for record in entry.records
    )
    count = len(entry.records)
    packs = f"in {count} pack{'s' if count > 1 else ''}, {' and '.join(modes)}"
    if len(numbers) == 1:
        return f"member {entry.job_id}/{numbers[0]} {packs}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"members {entry.job_id}/{numbers[0]}-{entry.job_id}/{numbers[-1]} {packs}"
    return f"members {entry.job_id}/{format_task_ids(tuple(numbers))} {packs}"


def explain(plan: Plan, submitted: Sequence[Submitted]) -> list[str]:
    """Why the packs look as they do, a sentence each."""
    texts = list(plan.reasons)
    for entry in submitted:
        for record, numbers in zip(entry.records, entry.members, strict=True):
            name = f"{entry.job_id}_{record.index}" if record.is_array else entry.job_id
            members = format_task_ids(tuple(sorted(numbers)))
            texts += [f"pack {name} (members {members}): {text}" for text in record.reasons]
    return texts


def build_answer_json(plan: Plan, submitted: Sequence[Submitted]) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes."""
    return {
        "schema": 1,
        "reasons": list(plan.reasons),
        "submitted": [
            {
                "job_id": entry.job_id,
                "packs": [
                    {
                        "slurm_job_id": f"{entry.job_id}_{record.index}"
                        if record.is_array
                        else entry.job_id,
                        "mode": record.mode.value,
                        "share": record.share,
                        "degree": record.degree,
                        "members": [f"{entry.job_id}/{number}" for number in numbers],
                        "reasons": list(record.reasons),
                    }
                    for record, numbers in zip(entry.records, entry.members, strict=True)
                ],
            }
            for entry in submitted
        ],
    }


def describe_open_room(call: Call, session: Session, *, local: bool) -> str:
    """The open pack that a call's only job would join, in words; empty where there is none."""
    if local or not session.settings.state_shared or not _may_join(call, session):
        return ""
    joined = _find_room(call, session, only_plan=True)[0]
    if joined is None:
        return ""
    from slurm_colloc.cli.joined import describe_room

    return f"The job would join pack {joined.member.job}: {describe_room(joined)}"


def ask_slurm(
    batch: Batch, jobs: Sequence[Job], packs_at_once: int | None, session: Session, directory: str
) -> list[str]:
    """What Slurm says of a batch that is not submitted, and what would be noted with it."""
    import tempfile

    from slurm_colloc.store.packs import make_submission_id
    from slurm_colloc.submission.hooks import HookChoice, build_hook_request
    from slurm_colloc.submission.request import build_options
    from slurm_colloc.submission.submit import build_batch_environment

    submission, hooks = make_submission_id(), HookChoice.of(session.settings)
    options = build_options(batch, jobs, packs_at_once, submission, "/dev/null", hooks=hooks)
    asked = build_hook_request(batch.packs, dict(batch.packs[0].group), submission, hooks)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pack.sh")
        script.write_text("#!/bin/sh\n")
        said = session.slurm.check(
            str(script),
            options,
            environment=build_batch_environment(os.environ),
            directory=directory,
        )
    return [*asked.notes, f"Slurm: {said}"]


def _run_dry(call: Call, session: Session, directory: str, *, local: bool) -> int:
    """Say what would be submitted; with Slurm, what it says of it (sbatch --test-only)."""
    from slurm_colloc.submission.request import group_into_batches

    room = describe_open_room(call, session, local=local)
    if room:
        say(room)
        return 0
    plan = make_plan(call, session.settings, None if local else session.slurm)
    jobs = [candidate.job for candidate in call.candidates]
    for text in plan.reasons:
        say(text)
    for batch in group_into_batches(plan, jobs):
        for pack in batch.packs:
            numbers = format_task_ids(
                tuple(sorted(jobs[member.job_index].number for member in pack.members))
            )
            mode = choose_share(call, session.settings).describe_mode(pack.mode)
            say(f"Pack of members {numbers}: {mode}, degree {pack.degree}")
            for text in pack.reasons:
                say(f"  {text}")
        if local:
            continue
        for text in ask_slurm(batch, jobs, plan.packs_at_once, session, directory):
            say(f"  {text}")
    sys.stdout.flush()
    return 0
