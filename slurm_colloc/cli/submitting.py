"""`csub [options] SCRIPT [arguments]` and `csub pack [options] SCRIPT...`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_colloc import __version__
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.model.plan import Plan
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import Options
from slurm_colloc.submission.collect import Call, collect_call
from slurm_colloc.submission.submit import Submitted, make_plan, submit_call


def run_submit(argv: Sequence[str], *, pack: bool = False) -> int:
    """Submit; the exit status."""
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    early = _peek(argv)
    if early is not None:
        say(early)
        return 0
    call = collect_call(argv, read_given_environment(), directory, pack=pack)
    session = Session.open()
    if call.options.flag("join"):
        raise UsageProblem(
            "--join is not part of this release", hint="jobs of one call share a pack"
        )
    local = call.options.flag("local")
    if call.options.flag("dry-run") or call.options.flag("test-only"):
        return _run_dry(call, session, directory, local=local)
    if session.state.list_open():
        session.refresh()
    if local:
        from slurm_colloc.submission.local import submit_local

        plan, submitted = submit_local(call, session.settings, session.state, os.environ, directory)
    else:
        plan, submitted = submit_call(
            call, session.settings, session.state, session.slurm, directory
        )
    _answer(call.options, plan, submitted)
    if call.options.flag("wait"):
        from slurm_colloc.cli.waiting import wait_for
        from slurm_colloc.model.member import Selection

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
    modes = dict.fromkeys(record.mode.value for record in entry.records)
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


def _run_dry(call: Call, session: Session, directory: str, *, local: bool) -> int:
    """Say what would be submitted; with Slurm, what it says of it (sbatch --test-only)."""
    import tempfile

    from slurm_colloc.submission.request import build_options, group_into_batches
    from slurm_colloc.submission.submit import build_batch_environment

    plan = make_plan(call, session.settings, None if local else session.slurm)
    jobs = [candidate.job for candidate in call.candidates]
    for text in plan.reasons:
        say(text)
    for batch in group_into_batches(plan, jobs):
        for pack in batch.packs:
            numbers = format_task_ids(
                tuple(sorted(jobs[member.job_index].number for member in pack.members))
            )
            say(f"Pack of members {numbers}: {pack.mode.value}, degree {pack.degree}")
            for text in pack.reasons:
                say(f"  {text}")
        if local:
            continue
        options = build_options(batch, jobs, plan.packs_at_once, "test", "/dev/null")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "pack.sh")
            script.write_text("#!/bin/sh\n")
            said = session.slurm.check(
                str(script),
                options,
                environment=build_batch_environment(os.environ),
                directory=directory,
            )
        say(f"  Slurm: {said}")
    sys.stdout.flush()
    return 0
