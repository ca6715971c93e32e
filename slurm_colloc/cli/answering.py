"""The answer to a submission: a line for each Slurm job, or JSON; the reasons, if asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from slurm_colloc.cli.session import note, say
from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.model.plan import Plan
from slurm_colloc.model.sharing import ShareRequest
from slurm_colloc.slurm.options import Options
from slurm_colloc.submission.submit import Submitted


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
