"""One Slurm job from its packs: write them, sbatch, write down the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from slurm_colloc import __version__
from slurm_colloc.errors import Interrupted, SlurmError, StateError
from slurm_colloc.model.plan import Policy
from slurm_colloc.model.sbatch.quantities import format_members
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc.store.pack.member_states import remove_environment
from slurm_colloc.store.pack.pack_directory import NewPack
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.submission.packs.batch_script import (
    build_archive,
    build_batch_environment,
    build_carried_environment,
    render_batch_script,
    render_kept_script,
)
from slurm_colloc.submission.packs.build_packs import build_packs
from slurm_colloc.submission.packs.call_batches import (
    MAX_ARRAY_SIZE,
    ONLY_ONE,
    Batch,
    PlaceInCall,
    group_into_batches,
    may_need_array,
    read_array_size,
)
from slurm_colloc.submission.packs.hook_token import HookChoice
from slurm_colloc.submission.packs.sbatch_options import build_options
from slurm_colloc.submission.packs.shorten_limits import shorten
from slurm_colloc.submission.plan.plan_call import CallPlan


@dataclasses.dataclass(frozen=True)
class Submitted:
    """One Slurm job that came of a call.

    Attributes:
        job_id: Its id.
        records: Its packs.
        members: The members' numbers of each pack, in the same order.
    """

    job_id: str
    records: tuple[PackRecord, ...]
    members: tuple[tuple[int, ...], ...]


def group_call(made: CallPlan, slurm: SlurmAccess | None) -> list[Batch]:
    """The Slurm jobs that a planned call becomes.

    Args:
        made: The call.
        slurm: Slurm, which is asked only where an array may be needed; None without Slurm.

    Raises:
        SlurmRefused: A task that runs alone has an index that Slurm does not take.
    """
    if slurm is None:
        # Nothing limits the numbers of tasks there.
        size = max(MAX_ARRAY_SIZE, 1 + max(job.number for job in made.jobs))
    else:
        config: Mapping[str, str] = {}
        if may_need_array(made.packs):
            # A Slurm that does not answer, or has less room, says so when it is asked for the job.
            with contextlib.suppress(SlurmError):
                config = slurm.read_config()
        size = read_array_size(config)
    return group_into_batches(made.packs, made.plan.packs_at_once, size)


def submit_batch(
    batch: Batch,
    submission: str,
    *,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    directory: str,
    held: HeldInterrupts,
    policy: Policy | None,
    refusals: tuple[str, ...] = (),
    resubmissions: int = 0,
    place: PlaceInCall = ONLY_ONE,
) -> Submitted:
    """Submit packs as one Slurm job.

    Args:
        batch: The packs.
        submission: The submission's id.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        directory: The submission directory.
        held: Interrupts that are held back meanwhile.
        policy: How far sharing may go in them later; None where no job may join them.
        refusals: Why the jobs did not join the packs that were there.
        resubmissions: How often they were submitted again.
        place: How this Slurm job stands to the others of its call.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    options = build_options(
        batch,
        submission,
        _choose_log(batch, submission, settings, state),
        hooks=HookChoice.of(settings),
        shown_id=place.shown_id,
        after_job=place.after_job,
    )
    environment = build_batch_environment(os.environ)
    packs = build_packs(
        batch,
        submission,
        environment=environment,
        options=options,
        directory=directory,
        carried=not settings.state_shared,
        cluster=state.cluster,
        policy=policy,
        refusals=refusals,
        resubmissions=resubmissions,
        place=place,
        settings=settings.for_runner,
    )
    records = [pack.record for pack in packs]
    with state.writing(packs) as lock:
        carried = not settings.state_shared
        # Slurm shows this path as the job's Command, so it stays as long as the pack; what travels
        # in the script stays nowhere else.
        folder = state.making if carried else state.pack_path(records[0].pack_id)
        script_path = folder / f"{submission}.sh"
        try:
            script = _render_script(batch, submission, records, settings, state)
            write_atomic(script_path, script.encode("utf-8", "surrogateescape"), 0o700)
            if held.came():
                raise Interrupted("interrupted; nothing was submitted")
            job_id = slurm.submit(
                str(script_path),
                options.words,
                environment={**environment, **_carry_environments(records, settings, state)},
                directory=directory,
                inherited=(lock,),
                held=held,
            )
        finally:
            if carried:
                with contextlib.suppress(OSError):
                    script_path.unlink()
    # From here on Slurm has the job: the packs stay, whatever happens to this process.
    _write_down(state, packs, job_id, carried=not settings.state_shared)
    if not held.came():
        records = shorten(slurm, state, job_id, batch, records)
    if held.came():
        _take_back(slurm, job_id)
    return Submitted(
        job_id,
        tuple(records),
        tuple(tuple(member.spec.job.number for member in pack.members) for pack in packs),
    )


def _choose_log(batch: Batch, submission: str, settings: Settings, state: State) -> str:
    """Where sbatch is to put what the batch script prints."""
    if not settings.state_shared:
        return "csub-%A_%a.log" if batch.is_array else "csub-%j.log"
    element = "%a" if batch.is_array else "0"
    # In a filename pattern of sbatch `%` stands for itself when doubled.
    path = str(state.packs / submission).replace("%", "%%")
    return f"{path}.{element}/pack.log"


def _render_script(
    batch: Batch,
    submission: str,
    records: Sequence[PackRecord],
    settings: Settings,
    state: State,
) -> str:
    archive = ""
    if not settings.state_shared:
        archive = build_archive(state.packs, [record.pack_id for record in records])
    count = format_members(sum(len(record.members) for record in records))
    title = f"{batch.name}: {count}"
    pack_path = submission if archive else str(state.packs / submission)
    if archive or settings.templates_dir:
        return render_batch_script(
            title=title,
            version=__version__,
            pack_path=pack_path,
            is_array=batch.is_array,
            python=settings.python,
            templates_dir=settings.templates_dir,
            archive=archive,
        )
    return render_kept_script(
        state.root,
        title=title,
        version=__version__,
        pack_path=pack_path,
        is_array=batch.is_array,
        python=settings.python,
    )


def _carry_environments(
    records: Sequence[PackRecord], settings: Settings, state: State
) -> dict[str, str]:
    """What the batch job gets besides its own environment: those of members that travel."""
    if settings.state_shared:
        return {}
    return build_carried_environment(state.packs, [record.pack_id for record in records])


def _write_down(state: State, packs: Sequence[NewPack], job_id: str, *, carried: bool) -> None:
    """Write the job's id into its packs; remove what has travelled with them."""
    try:
        state.record_job([pack.record for pack in packs], job_id)
        if carried:
            for pack in packs:
                for member in pack.members:
                    # It has travelled; nothing on this side would remove it later.
                    remove_environment(state.pack_path(pack.record.pack_id), member.spec.job.number)
    except StateError as error:
        error.message += f"; job {job_id} was submitted all the same"
        # Its runner writes its id, too: only that is missing, and no job is half there.
        error.hint = "make room, then csub queue shows it"
        raise


def _take_back(slurm: SlurmAccess, job_id: str) -> None:
    """Ctrl-C while sbatch ran, and it has submitted: cancel that job again."""
    try:
        slurm.cancel(job_id)
    except SlurmError as error:
        raise Interrupted(
            f"interrupted; job {job_id} was submitted and could not be cancelled",
            hint=f"csub cancel {job_id} ends it",
        ) from error
    raise Interrupted(f"interrupted; job {job_id} was submitted and has been cancelled")
