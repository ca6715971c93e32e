"""Submitting members again whose pack is over before they had their turn.

The new pack is named in each member's `moved.json` before sbatch is called. A kill in between
leaves a note about a pack that is not there, which means nothing; a submission that Slurm has is
found again by its comment. So a member is submitted again once, whatever happens to csub.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.errors import NotFound
from slurm_colloc.model.job_ids import LARGEST_TASK_ID
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import PackPlan, name_seat
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts, hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.indexes import build_pack_id
from slurm_colloc.store.member_states import read_home
from slurm_colloc.store.pack_directory import MemberSpec, PackRecord, read_spec, write_moved
from slurm_colloc.submission.jobs.stored_jobs import SERVED, read_stored_job
from slurm_colloc.submission.packs.call_batches import group_into_batches
from slurm_colloc.submission.packs.submit_batch import submit_batch
from slurm_colloc.submission.plan.plan_call import add_candidates


def resubmit(
    state: State,
    slurm: SlurmAccess,
    settings: Settings,
    pack_id: str,
    numbers: Sequence[int],
    *,
    counts: bool = True,
) -> str:
    """Submit never started members of an ended pack again, as one new pack; its Slurm job id.

    They keep the numbers that their submission gave them: 4711/3 becomes 4720/3. So they are of
    one submission. The caller holds the pack's lock.

    Args:
        state: The state directory.
        slurm: Slurm.
        settings: The settings.
        pack_id: The pack that is over.
        numbers: Which of its members, at least one, by their numbers in it.
        counts: Count it against the number of times that the sweep may do it by itself.

    Raises:
        NotFound: There is no such pack.
        CollocError: Slurm did not take it, or the state cannot be written; nothing has changed.
    """
    record = state.read_pack(pack_id)
    if record is None:
        raise NotFound(f"there is no pack {pack_id} in {state.root}")
    path = state.pack_path(pack_id)
    specs = [read_spec(path, number) for number in numbers]
    candidates = [
        read_stored_job(path, number, spec) for number, spec in zip(numbers, specs, strict=True)
    ]
    submitted_in = read_home(path, numbers[0]) or record
    packs = add_candidates([_plan_again(record, specs)], candidates)
    # A task alone has an index that Slurm took before.
    (batch,) = group_into_batches(packs, None, LARGEST_TASK_ID + 1)
    submission = make_submission_id()
    new_id = build_pack_id(submission, batch.indices[0])
    for number in numbers:
        write_moved(path, number, new_id)
    # The notes stay, whatever happens: they mean something as long as the new pack is there.
    # Ctrl-C is not for this job, which no user has just typed.
    with hold_interrupts():
        submitted = submit_batch(
            batch,
            submission,
            settings=settings,
            state=state,
            slurm=slurm,
            directory=submitted_in.submit_directory,
            held=HeldInterrupts(),
            policy=record.policy,
            resubmissions=record.resubmissions + (1 if counts else 0),
        )
    return submitted.job_id


def _plan_again(record: PackRecord, specs: Sequence[MemberSpec]) -> PackPlan:
    """The old pack's plan with these members alone; it asks for what the old one asked for."""
    return PackPlan(
        members=tuple(replace(spec.plan, job_index=index) for index, spec in enumerate(specs)),
        degree=record.degree,
        mode=record.mode,
        request=record.request,
        # It had its release and its turn: what it waited for then is no more to wait for.
        group=tuple(pair for pair in record.group if pair[0] not in SERVED),
        predicted_slowdown=None,
        reasons=(*record.reasons, "submitted again: its members never started in their first pack"),
        sharing=record.sharing,
        power_limit_w=record.power_limit_w,
        layout=tuple(
            replace(name_seat(word, number), places=places)
            for number, (word, places) in enumerate(
                zip(record.layout, record.layout_places or [1] * len(record.layout), strict=True)
            )
        ),
    )
