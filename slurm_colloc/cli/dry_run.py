"""What would be submitted, and what Slurm says of it, without submitting it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.cli.joining import describe_open_room
from slurm_colloc.cli.session import Session, say
from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.model.job import Job
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.store.packs import make_submission_id
from slurm_colloc.submission.collect import Call
from slurm_colloc.submission.hooks import HookChoice, build_hook_request
from slurm_colloc.submission.planned import make_plan
from slurm_colloc.submission.policy import choose_share
from slurm_colloc.submission.request import Batch, build_options, group_into_batches
from slurm_colloc.submission.submit import build_batch_environment


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
