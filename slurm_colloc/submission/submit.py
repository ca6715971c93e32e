"""One call of csub from its jobs to Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from slurm_colloc.errors import CollocError, SlurmError, SlurmNoAnswer
from slurm_colloc.model.plan import Policy
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import hold_interrupts
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.call_batches import (
    find_later_place,
    find_place,
    list_parts,
)
from slurm_colloc.submission.packs.submit_batch import Submitted, group_call, submit_batch
from slurm_colloc.submission.plan.opening import Opening
from slurm_colloc.submission.plan.plan_call import CallPlan, plan_call


def submit_call(
    call: Call,
    policy: Policy,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    *,
    directory: str,
    answer: Callable[[CallPlan, Sequence[Submitted]], None],
    refusals: tuple[str, ...] = (),
    part_of: str = "",
    opening: Opening | None = None,
) -> list[Submitted]:
    """Plan and submit a call: whole or not at all, under the id of its first Slurm job.

    Args:
        call: The call.
        policy: How far sharing may go.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        directory: The submission directory.
        answer: Tells what was submitted. An interrupt waits for that too, for otherwise the user
            would not know of a job that Slurm has.
        refusals: Why its job did not join the packs that were there.
        part_of: The id of an earlier submission, of which it becomes a part; its jobs have numbers
            that are free there. Empty for a submission of its own.
        opening: How its only job is opened for others; None where it is not.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    made = plan_call(call, policy, settings, slurm)
    if opening is not None:
        from slurm_colloc.submission.packs.open_job import open_job

        made = open_job(made, opening, settings, slurm, directory=directory)
    batches = group_call(made, slurm)
    state.prepare()
    names = [make_submission_id() for _ in batches]
    submitted: list[Submitted] = []
    if part_of:
        # Before sbatch is called: packs that never come are passed over by all that read it.
        state.add_parts(part_of, list_parts(batches, names))
    # From the first file to the job id that is written down: all of it, or nothing.
    with hold_interrupts() as held:
        for batch, name in zip(batches, names, strict=True):
            try:
                submitted.append(
                    submit_batch(
                        batch,
                        name,
                        settings=settings,
                        state=state,
                        slurm=slurm,
                        directory=directory,
                        held=held,
                        policy=made.policy,
                        refusals=refusals,
                        place=find_later_place(batch, name, part_of)
                        if part_of
                        else find_place(batches, names, [entry.job_id for entry in submitted]),
                    )
                )
            except CollocError as error:
                if submitted:
                    error.message += f" ({_take_back(slurm, submitted, error)})"
                raise
        answer(made, submitted)
    return submitted


def _take_back(slurm: SlurmAccess, submitted: Sequence[Submitted], error: CollocError) -> str:
    """Cancel what the call has submitted before it failed; what became of it, in words."""
    ids = [entry.job_id for entry in submitted]
    shown = f"job{'s' if len(ids) > 1 else ''} {', '.join(ids)}"
    # Where no answer came the last may be submitted, too, and is one of them.
    if not isinstance(error, SlurmNoAnswer):
        with contextlib.suppress(SlurmError):
            slurm.cancel(*ids)
            return f"{shown} of this call, which had already been submitted, was cancelled"
    return f"already submitted, and not cancelled: {shown}"
