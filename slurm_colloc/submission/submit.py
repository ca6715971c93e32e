"""One call of csub from its jobs to Slurm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_colloc.errors import CollocError
from slurm_colloc.model.plan import Policy
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import hold_interrupts
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.sbatch_options import group_into_batches
from slurm_colloc.submission.packs.submit_batch import Submitted, submit_batch
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
) -> list[Submitted]:
    """Plan and submit a call.

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

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    made = plan_call(call, policy, settings, slurm)
    state.prepare()
    submitted: list[Submitted] = []
    # From the first file to the job id that is written down: all of it, or nothing.
    with hold_interrupts() as held:
        for batch in group_into_batches(made.packs, made.plan.packs_at_once):
            try:
                submitted.append(
                    submit_batch(
                        batch,
                        make_submission_id(),
                        settings=settings,
                        state=state,
                        slurm=slurm,
                        directory=directory,
                        held=held,
                        policy=made.policy,
                        refusals=refusals,
                    )
                )
            except CollocError as error:
                if submitted:
                    ids = ", ".join(entry.job_id for entry in submitted)
                    error.message += f" (submitted before that, and not taken back: job {ids})"
                raise
        answer(made, submitted)
    return submitted
