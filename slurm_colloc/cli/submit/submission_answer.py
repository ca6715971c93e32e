"""The answer to a submission: a line for each Slurm job, or JSON; the reasons, if asked for."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.submit.join_first import describe_open_room
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Plan
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.slurm.options import Options
from slurm_colloc.store.all_packs import make_submission_id
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.hook_token import HookChoice, build_hook_request
from slurm_colloc.submission.packs.sbatch_options import Batch, build_options, group_into_batches
from slurm_colloc.submission.plan.call_policy import choose_share
from slurm_colloc.submission.plan.plan_call import make_plan
from slurm_colloc.submission.submit import Submitted, build_batch_environment


def answer(options: Options, plan: Plan, submitted: Sequence[Submitted]) -> None:
    """Say what was submitted."""
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


def run_dry(call: Call, session: Session, directory: str, *, local: bool) -> int:
    """Say what would be submitted; with Slurm, what it says of it (sbatch --test-only)."""
    room = describe_open_room(call, session, local=local)
    if room:
        say(room)
        return 0
    plan = make_plan(call, session.settings, None if local else session.slurm)
    jobs = [candidate.job for candidate in call.candidates]
    for text in plan.reasons:
        say(escape_controls(text))
    for batch in group_into_batches(plan, jobs):
        for pack in batch.packs:
            numbers = format_task_ids(
                tuple(sorted(jobs[member.job_index].number for member in pack.members))
            )
            mode = choose_share(call, session.settings).describe_mode(pack.mode)
            say(f"Pack of members {numbers}: {mode}, degree {pack.degree}")
            for text in pack.reasons:
                say(f"  {escape_controls(text)}")
        if local:
            continue
        for text in ask_slurm(batch, jobs, plan.packs_at_once, session, directory):
            say(f"  {text}")
    sys.stdout.flush()
    return 0


def ask_slurm(
    batch: Batch, jobs: Sequence[Job], packs_at_once: int | None, session: Session, directory: str
) -> list[str]:
    """What Slurm says of a batch that is not submitted, and what would be noted with it."""
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
