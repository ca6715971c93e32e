"""The answer to a submission: sbatch's line, or JSON; the pack that was joined; the reasons.

A call is one submission and has one id, that of its first Slurm job, whatever it became inside.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.job_ids import format_task_ids
from slurm_colloc.model.plan import Policy
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.session.place_call import find_room
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.session.standard_streams import is_one_stream
from slurm_colloc.slurm.options import Options
from slurm_colloc.store.all_packs import build_element_id
from slurm_colloc.store.pack_directory import PackRecord
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.call_batches import Batch
from slurm_colloc.submission.packs.submit_batch import Submitted, group_call
from slurm_colloc.submission.plan.plan_call import CallPlan, Opening, plan_call

if TYPE_CHECKING:
    from slurm_colloc.submission.join.join_pack import Joined

PARTNERS_NAMED = 4

_SHOWN_MOST = 3
"""Slurm jobs of a submission, besides its first, that its answer names."""


def describe_open_room(call: Call, policy: Policy, session: Session, *, joins: str) -> str:
    """The open pack that a call's only job would join, in words; empty where there is none."""
    if joins == "never":
        return ""
    joined = find_room(call, policy, session, running=joins == "auto", only_plan=True)[0]
    if joined is None:
        return ""
    return f"The job would join pack {joined.member.job}: {describe_room(joined)}"


def tell_joined(options: Options, joined: Joined) -> None:
    """Say which pack a job has joined, with whom, and why."""
    if options.flag("json"):
        told = {
            "member": joined.member.address,
            "job_id": joined.member.joined_as or joined.member.job,
            "slurm_job_id": joined.member.job,
            "running": joined.is_running,
            "partners": [str(partner) for partner in joined.partners],
            "places": joined.places,
        }
        say(json.dumps({"schema": 1, "joined": told}))
        return

    # Without a number of its own it is named as a member: the job's id would mean all of its pack.
    tell_id(options, str(joined.member), describe_room(joined))
    for path in () if is_one_stream() else joined.renamed:
        note(f"{joined.member}: it writes {path}, for another member writes where it would have")
    if options.flag("explain") or options.flag("verbose"):
        for text in joined.record.reasons:
            note(f"pack {joined.member.job}: {text}")


def describe_room(joined: Joined) -> str:
    """`4711/2, shares a pack with 4711/1: 2 of 16 places`."""
    names = [str(partner) for partner in joined.partners]
    shown = names[: PARTNERS_NAMED if len(names) <= PARTNERS_NAMED else PARTNERS_NAMED - 1]
    last = shown.pop() if len(shown) == len(names) else f"{len(names) - len(shown)} others"
    partners = " and ".join(filter(None, [", ".join(shown), last]))
    how = "joined the running pack of" if joined.is_running else "shares a pack with"
    where = joined.member.address
    return f"{where}, {how} {partners}: {len(names) + 1} of {joined.places} places"


def answer(options: Options, made: CallPlan, submitted: Sequence[Submitted]) -> None:
    """Say what was submitted."""
    if options.flag("json"):
        say(json.dumps(build_answer_json(made, submitted)))
        return
    tell_id(options, submitted[0].job_id, describe(submitted))
    if options.flag("explain") or options.flag("verbose"):
        for text in explain(made, submitted):
            note(text)


def tell_id(options: Options, job_id: str, rest: str) -> None:
    """Say what was submitted; a program that reads it gets what sbatch prints, and no more.

    Args:
        options: The options of the call.
        job_id: The submission's id.
        rest: What csub has to say besides.
    """
    if options.flag("quiet"):
        return
    if options.flag("parsable"):
        say(job_id)
    elif sys.stdout.isatty():
        say(f"Submitted batch job {job_id} ({rest})")
    else:
        say(f"Submitted batch job {job_id}")
        sys.stdout.flush()
        # Who reads both together reads the last word as the id.
        if not is_one_stream():
            note(rest)


def describe(submitted: Sequence[Submitted]) -> str:
    """`members 4711/1-4711/3 in 1 pack, timeslice`."""
    job_id = submitted[0].job_id
    numbers = sorted(number for entry in submitted for pack in entry.members for number in pack)
    records = [record for entry in submitted for record in entry.records]
    modes = dict.fromkeys(
        ShareRequest.parse(record.share).describe_mode(record.mode) for record in records
    )
    packs = f"in {_count_packs(records)}, {' and '.join(modes)}"
    others = [entry.job_id for entry in submitted[1:] if not entry.records[0].local]
    if others:
        shown = ", ".join(others[:_SHOWN_MOST]) + (", ..." if len(others) > _SHOWN_MOST else "")
        packs += f"; in Slurm also job{'s' if len(others) > 1 else ''} {shown}"
    if len(numbers) == 1:
        return f"member {job_id}/{numbers[0]} {packs}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"members {job_id}/{numbers[0]}-{job_id}/{numbers[-1]} {packs}"
    return f"members {job_id}/{format_task_ids(tuple(numbers))} {packs}"


def _count_packs(records: Sequence[PackRecord]) -> str:
    """How many packs there are, in words; those of several GPUs with their GPUs."""
    gpus = [sum(record.gpu_sets) for record in records if record.gpu_set == 0]
    count = format_count(len(gpus), "pack")
    if not any(gpus):
        return count
    most = "" if len(set(gpus)) == 1 else "up to "
    return f"{count} of {most}{max(gpus)} GPUs"


def explain(made: CallPlan, submitted: Sequence[Submitted]) -> list[str]:
    """Why the packs look as they do, a sentence each."""
    texts = list(made.plan.reasons)
    for entry in submitted:
        for record, numbers in zip(entry.records, entry.members, strict=True):
            name = build_element_id(record, entry.job_id)
            members = format_task_ids(tuple(sorted(numbers)))
            if record.gpu_sets:
                name += f", GPU set {record.gpu_set + 1} of {len(record.gpu_sets)}"
            texts += [f"pack {name} (members {members}): {text}" for text in record.reasons]
    return texts


def build_answer_json(
    made: CallPlan, submitted: Sequence[Submitted], *, job_id: str = ""
) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes.

    Args:
        made: The plan of the call.
        submitted: What came of it.
        job_id: The submission of which it has become a part; empty where it is one itself.
    """
    job_id = job_id or submitted[0].job_id
    return {
        "schema": 1,
        "reasons": list(made.plan.reasons),
        "submitted": [
            {
                "job_id": job_id,
                "packs": [
                    {
                        "slurm_job_id": build_element_id(record, entry.job_id),
                        "mode": record.mode.value,
                        "share": record.share,
                        "degree": record.degree,
                        "gpu_set": record.gpu_set if record.gpu_sets else None,
                        "members": [f"{job_id}/{number}" for number in numbers],
                        "reasons": list(record.reasons),
                    }
                    for entry in submitted
                    for record, numbers in zip(entry.records, entry.members, strict=True)
                ],
            }
        ],
    }


def run_dry(
    call: Call,
    policy: Policy,
    session: Session,
    directory: str,
    *,
    local: bool,
    joins: str,
    opening: Opening | None = None,
) -> int:
    """Say what would be submitted; with Slurm, what it says of it (sbatch --test-only).

    With `--test-only` all of it goes to standard error, where sbatch's answer goes.
    """
    is_test = call.options.flag("test-only")
    tell = note if is_test else say
    room = describe_open_room(call, policy, session, joins=joins)
    if room:
        tell(room)
        return 0
    made = plan_call(call, policy, session.settings, None if local else session.slurm)
    if opening is not None:
        from slurm_colloc.submission.packs.open_job import open_job

        made = open_job(made, opening, session.settings, session.slurm, directory=directory)
    share = ShareRequest.parse(made.policy.share)
    for text in made.plan.reasons:
        tell(escape_controls(text))
    for batch in group_call(made, None if local else session.slurm):
        for text in _describe_batch(batch, share):
            tell(text)
        if local:
            continue
        from slurm_colloc.submission.packs.open_job import ask_slurm

        notes, said = ask_slurm(batch, session.settings, session.slurm, directory)
        for text in notes:
            tell(f"  {text}")
        if is_test:
            for line in said.splitlines():
                note(line, "sbatch")
        else:
            tell(f"  Slurm: {said}")
    sys.stdout.flush()
    return 0


def _describe_batch(batch: Batch, share: ShareRequest) -> Iterator[str]:
    for element in batch.elements:
        if batch.gpu_sets:
            yield f"Pack of {sum(batch.gpu_sets)} GPUs:"
        for place, pack in enumerate(element):
            numbers = format_task_ids(sorted(c.job.number for c in pack.candidates))
            mode = share.describe_mode(pack.plan.mode)
            yield (
                f"{_name_gpus(batch, place)} members {numbers}: {mode}, degree {pack.plan.degree}"
            )
        for text in dict.fromkeys(text for pack in element for text in pack.plan.reasons):
            yield f"  {escape_controls(text)}"


def _name_gpus(batch: Batch, place: int) -> str:
    """How a pack is called in its Slurm job: `Pack of`, or `  GPUs 1-2,` of one with several."""
    if not batch.gpu_sets:
        return "Pack of"
    first = 1 + sum(batch.gpu_sets[:place])
    last = first + batch.gpu_sets[place] - 1
    gpus = f"GPU {first}" if first == last else f"GPUs {first}-{last}"
    return f"  {gpus},"
