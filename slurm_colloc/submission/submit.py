"""One call of csub from jobs to Slurm: plan, write the packs, sbatch, write down the answer."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_colloc import __version__
from slurm_colloc.errors import (
    CollocError,
    Interrupted,
    SlurmError,
    StateError,
    UsageProblem,
)
from slurm_colloc.model.plan import Plan, Policy
from slurm_colloc.model.sbatch.quantities import format_members
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import (
    HeldInterrupts,
    build_client_environment,
    hold_interrupts,
)
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc.store.pack.member_states import remove_environment
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.packs.batch_script import render_batch_script, render_kept_script
from slurm_colloc.submission.packs.build_packs import build_packs
from slurm_colloc.submission.packs.hook_token import HookChoice, build_hook_request
from slurm_colloc.submission.packs.sbatch_options import (
    Batch,
    build_name,
    build_options,
    group_into_batches,
)
from slurm_colloc.submission.packs.shorten_limits import shorten
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.plan_call import make_plan

# What sbatch, and with it the batch script, gets of the user's environment; the members get the
# whole of theirs from the pack directory.
_CLIENT_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME",
     "XDG_STATE_HOME", "XDG_CONFIG_HOME"}
)  # fmt: skip
_CLIENT_PREFIXES = ("LC_", "SLURM_COLLOC_")


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


def submit_call(
    call: Call,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    directory: str,
    *,
    answer: Callable[[Plan, Sequence[Submitted]], None],
    refusals: tuple[str, ...] = (),
) -> list[Submitted]:
    """Plan and submit a call.

    Args:
        call: The call.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        directory: The submission directory.
        answer: Tells what was submitted. An interrupt waits for that too, for otherwise nobody
            would know of a job that Slurm has.
        refusals: Why its job did not join the packs that were there.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    chosen = make_plan(call, settings, slurm)
    jobs = [candidate.job for candidate in call.candidates]
    state.prepare()
    submitted: list[Submitted] = []
    # From the first file to the job id that is written down: all of it, or nothing.
    with hold_interrupts() as held:
        for batch in group_into_batches(chosen, jobs):
            try:
                submitted.append(
                    submit_batch(
                        batch,
                        chosen,
                        call.candidates,
                        make_submission_id(),
                        settings=settings,
                        state=state,
                        slurm=slurm,
                        directory=directory,
                        held=held,
                        policy=choose_policy(call, settings),
                        refusals=refusals,
                    )
                )
            except CollocError as error:
                if submitted:
                    ids = ", ".join(entry.job_id for entry in submitted)
                    error.message += f" (submitted before that, and not taken back: job {ids})"
                raise
        answer(chosen, submitted)
    return submitted


def submit_batch(
    batch: Batch,
    chosen: Plan,
    candidates: Sequence[Candidate],
    submission: str,
    *,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    directory: str,
    held: HeldInterrupts,
    policy: Policy | None = None,
    refusals: tuple[str, ...] = (),
    resubmissions: int = 0,
) -> Submitted:
    """Submit packs as one Slurm job.

    Args:
        batch: The packs.
        chosen: The plan that they are of.
        candidates: The jobs of the plan.
        submission: The submission's id.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        directory: The submission directory.
        held: Interrupts that are held back meanwhile.
        policy: How far sharing may go in them later; None where no job may join them.
        refusals: Why the jobs did not join the packs that were there.
        resubmissions: How often they were submitted again.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    jobs = [candidate.job for candidate in candidates]
    element = "%a" if batch.is_array else "0"
    log = f"{_escape(str(state.packs / submission))}.{element}/pack.log"
    if not settings.state_shared:
        log = "csub-%A_%a.log" if batch.is_array else "csub-%j.log"
    hooks = HookChoice.of(settings)
    options = build_options(batch, jobs, chosen.packs_at_once, submission, log, hooks=hooks)
    asked = build_hook_request(batch.packs, dict(batch.packs[0].group), submission, hooks)
    environment = build_batch_environment(os.environ)
    packs = build_packs(
        batch,
        candidates,
        submission,
        environment=environment,
        options=options,
        directory=directory,
        carried=not settings.state_shared,
        cluster=state.cluster,
        policy=policy,
        refusals=refusals,
        resubmissions=resubmissions,
        notes=asked.notes,
    )
    records = [pack.record for pack in packs]
    with state.writing(packs) as lock:
        script_path = state.making / f"{submission}.sh"
        try:
            archive = ""
            if not settings.state_shared:
                archive = build_archive(state.packs, [record.pack_id for record in records])
            count = format_members(sum(len(pack.members) for pack in packs))
            title = f"{build_name(batch, jobs)}: {count}"
            if archive or settings.templates_dir:
                script = render_batch_script(
                    title=title,
                    version=__version__,
                    pack_path=submission if archive else str(state.packs / submission),
                    is_array=batch.is_array,
                    python=settings.python,
                    templates_dir=settings.templates_dir,
                    archive=archive,
                )
            else:
                script = render_kept_script(
                    state.root,
                    title=title,
                    version=__version__,
                    pack_path=str(state.packs / submission),
                    is_array=batch.is_array,
                    python=settings.python,
                )
            write_atomic(script_path, script.encode("utf-8", "surrogateescape"), 0o700)
            if held.came():
                raise Interrupted("interrupted; nothing was submitted")
            job_id = slurm.submit(
                str(script_path),
                options,
                environment=environment,
                directory=directory,
                inherited=(lock,),
                held=held,
            )
        finally:
            with contextlib.suppress(OSError):
                script_path.unlink()
    # From here on Slurm has the job: the packs stay, whatever happens to this process.
    try:
        state.record_job(records, job_id)
        if not settings.state_shared:
            for pack in packs:
                for member in pack.members:
                    # It has travelled; nobody on this side would remove it later.
                    remove_environment(state.pack_path(pack.record.pack_id), member.spec.job.number)
    except StateError as error:
        error.message += f"; job {job_id} was submitted, its runner writes its id itself"
        raise
    if not held.came():
        records = shorten(slurm, state, job_id, batch, records)
    if held.came():
        _take_back(slurm, job_id)
    return Submitted(
        job_id,
        tuple(records),
        tuple(tuple(member.spec.job.number for member in pack.members) for pack in packs),
    )


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


def _escape(path: str) -> str:
    """A path in a filename pattern of sbatch: `%` stands for itself when doubled."""
    return path.replace("%", "%%")


def build_batch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of sbatch and of the batch script: small and known.

    With `--export=ALL` Slurm passes it on as it is; everything else that the batch script finds
    was then added by Slurm or the site.
    """
    client = build_client_environment(environ)
    return {
        name: value
        for name, value in client.items()
        if name in _CLIENT_VARIABLES
        or name.startswith(_CLIENT_PREFIXES)
        or name in ("SLURM_CONF", "SLURM_CONF_SERVER")
    }


SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size; the archive must fit with room."""


def build_archive(packs: Path, pack_ids: Sequence[str]) -> str:
    """Pack directories as lines of base64, for a here-document.

    Args:
        packs: The directory that holds them.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for a batch script.
    """
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for pack_id in pack_ids:
            archive.add(packs / pack_id, arcname=f"packs/{pack_id}")
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    if len(text) > SCRIPT_LIMIT_BYTES * 3 // 4:
        raise UsageProblem(
            f"the jobs take {len(text) // 1024} KB, which is too much to travel in a batch script",
            hint="submit fewer at a time, or set state_dir to a path that the nodes share",
        )
    return "\n".join(textwrap.wrap(text, 120))
