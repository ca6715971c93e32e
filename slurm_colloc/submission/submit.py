"""One call of csub from jobs to Slurm: plan, write the packs, sbatch, write down the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence

from slurm_colloc import __version__
from slurm_colloc.errors import (
    CollocError,
    Interrupted,
    NoPackPossible,
    SlurmError,
    StateError,
)
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Plan, Policy, SharingMode
from slurm_colloc.planning.grouping import plan
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.slurm.commands import (
    HeldInterrupts,
    build_client_environment,
    hold_interrupts,
)
from slurm_colloc.store.directory import NewMember, NewPack, build_environment_block
from slurm_colloc.store.files import write_atomic
from slurm_colloc.store.packs import State, build_pack_id, make_submission_id
from slurm_colloc.store.records import MemberSpec, PackRecord
from slurm_colloc.store.states import remove_environment
from slurm_colloc.submission.capacity import compute_capacity
from slurm_colloc.submission.collect import Call, Candidate
from slurm_colloc.submission.render import render_batch_script, render_kept_script
from slurm_colloc.submission.request import Batch, build_name, build_options, group_into_batches

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


def choose_policy(call: Call, settings: Settings) -> Policy:
    """The policy of a call: what the user said, else the settings."""
    degree = call.degree or settings.degree
    size = call.pack_size or settings.pack_size or None
    return Policy(
        degree=degree,
        pack_size=max(size, degree) if size else None,
        slowdown_bound=call.slowdown_bound or settings.slowdown_bound,
        running_limit=call.array.limit if call.array else None,
        mode=SharingMode.TIMESLICE,
        start_margin_s=settings.start_margin_s,
    )


def make_plan(call: Call, settings: Settings, slurm: SlurmCommands | None) -> Plan:
    """Plan a call; asks Slurm about its nodes only if something may share.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        NoPackPossible: A job asks for more GPU memory than the GPU has.
    """
    jobs = [candidate.job for candidate in call.candidates]
    capacity = Capacity()
    first = next((job for job in jobs if job.came_together and job.gpus == 1), None)
    if first is not None:
        gpu_memory_mb = settings.gpu_memory_mb(first.gpu_type)
        if slurm is None:
            capacity = Capacity(gpu_memory_mb=gpu_memory_mb)
        else:
            group = dict(first.group)
            capacity = compute_capacity(
                slurm.list_nodes(group.get("nodelist")),
                group.get("partition"),
                first.gpu_type,
                gpu_memory_mb,
            )
    for job in jobs:
        if (
            job.gpu_memory_mb
            and capacity.gpu_memory_mb
            and job.gpu_memory_mb > capacity.gpu_memory_mb
        ):
            raise NoPackPossible(
                f"{job.script_name}: --gpu-mem={job.gpu_memory_mb}M is more than the GPU's "
                f"{capacity.gpu_memory_mb} MB",
                hint="ask for another GPU type, or for less",
            )
    return plan(jobs, {}, capacity, choose_policy(call, settings))


def submit_call(
    call: Call, settings: Settings, state: State, slurm: SlurmCommands, directory: str
) -> tuple[Plan, list[Submitted]]:
    """Plan and submit a call.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    chosen = make_plan(call, settings, slurm)
    jobs = [candidate.job for candidate in call.candidates]
    state.prepare()
    submitted: list[Submitted] = []
    for batch in group_into_batches(chosen, jobs):
        try:
            # From the first file to the job id that is written down: all of it, or nothing.
            with hold_interrupts() as held:
                submitted.append(
                    _submit_batch(
                        batch,
                        chosen,
                        call.candidates,
                        settings=settings,
                        state=state,
                        slurm=slurm,
                        directory=directory,
                        held=held,
                    )
                )
        except CollocError as error:
            if submitted:
                ids = ", ".join(entry.job_id for entry in submitted)
                error.message += f" (submitted before that, and not taken back: job {ids})"
            raise
    return chosen, submitted


def _submit_batch(
    batch: Batch,
    chosen: Plan,
    candidates: Sequence[Candidate],
    *,
    settings: Settings,
    state: State,
    slurm: SlurmCommands,
    directory: str,
    held: HeldInterrupts,
) -> Submitted:
    submission = make_submission_id()
    jobs = [candidate.job for candidate in candidates]
    element = "%a" if batch.is_array else "0"
    log = f"{_escape(str(state.packs / submission))}.{element}/pack.log"
    if not settings.state_shared:
        log = "csub-%A_%a.log" if batch.is_array else "csub-%j.log"
    options = build_options(batch, jobs, chosen.packs_at_once, submission, log)
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
    )
    records = [pack.record for pack in packs]
    with state.writing(packs) as lock:
        script_path = state.making / f"{submission}.sh"
        try:
            archive = ""
            if not settings.state_shared:
                from slurm_colloc.store.carry import build_archive

                archive = build_archive(state.packs, [record.pack_id for record in records])
            title = f"{build_name(batch, jobs)}: {sum(len(p.members) for p in packs)} members"
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
    if held.came():
        _take_back(slurm, job_id)
    return Submitted(
        job_id,
        tuple(records),
        tuple(tuple(member.spec.job.number for member in pack.members) for pack in packs),
    )


def _take_back(slurm: SlurmCommands, job_id: str) -> None:
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


def build_packs(
    batch: Batch,
    candidates: Sequence[Candidate],
    submission: str,
    *,
    environment: Mapping[str, str],
    options: Sequence[str],
    directory: str,
    local: bool = False,
    carried: bool = False,
    cluster: str = "",
) -> list[NewPack]:
    """The packs of one Slurm job, ready to be written."""
    umask = os.umask(0o077)
    os.umask(umask)
    blocks: dict[int, bytes] = {}
    packs = []
    jobs: list[Job] = [candidate.job for candidate in candidates]
    name = build_name(batch, jobs)
    for index, planned in zip(batch.indices, batch.packs, strict=True):
        members = []
        for member in planned.members:
            candidate = candidates[member.job_index]
            key = id(candidate.environment)
            if key not in blocks:
                blocks[key] = _encode_environment(candidate.environment)
            members.append(
                NewMember(MemberSpec(candidate.job, member, umask), candidate.script, blocks[key])
            )
        record = PackRecord(
            pack_id=build_pack_id(submission, index),
            submission=submission,
            index=index,
            indices=batch.indices,
            is_array=batch.is_array,
            created_at=time.time(),
            name=name,
            mode=planned.mode,
            degree=planned.degree,
            request=planned.request,
            group=planned.group,
            reasons=planned.reasons,
            members=tuple(member.spec.job.number for member in members),
            submit_directory=directory,
            submit_host=os.uname().nodename,
            # With another --export nothing of it reaches the batch script.
            client_environment=tuple(
                () if "export" in dict(planned.group) else sorted(environment.items())
            ),
            slurm_options=tuple(options),
            local=local,
            carried=carried,
            cluster=cluster,
        )
        packs.append(NewPack(record, tuple(members)))
    return packs


def _encode_environment(environment: Mapping[str, str]) -> bytes:
    return build_environment_block(
        {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in environment.items()
        }
    )
