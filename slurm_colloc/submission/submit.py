"""One call of csub from its jobs to Slurm.

Also: packs without Slurm: on a workstation, or where Slurm cannot be installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.errors import CollocError, SlurmError, SlurmNoAnswer, StateError
from slurm_colloc.model.plan import Policy
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    hold_lock,
    make_directory,
    write_atomic,
)
from slurm_colloc.store.member_states import forget_hold
from slurm_colloc.store.pack_directory import PackRecord, is_local_alive
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.build_packs import SbatchOptions, build_packs
from slurm_colloc.submission.packs.call_batches import find_later_place, find_place, list_parts
from slurm_colloc.submission.packs.submit_batch import Submitted, group_call, submit_batch
from slurm_colloc.submission.plan.plan_call import CallPlan, Opening, plan_call


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


# ---- Packs without Slurm: on a workstation, or where Slurm cannot be installed -------------------
#
# A pack is run by the same runner, as a process of its own session on this machine. It waits for a
# free GPU of the machine (or, where there is none, for the machine) and then runs its members.

LOCK_WAIT_S = 10.0


def submit_local(
    call: Call,
    policy: Policy,
    settings: Settings,
    state: State,
    *,
    environ: Mapping[str, str],
    directory: str,
) -> tuple[CallPlan, list[Submitted]]:
    """Plan a call and start its packs on this machine.

    Raises:
        CollocError: Nothing was started, or what was is named in the message.
    """
    made = plan_call(call, policy, settings, None)
    state.prepare()
    make_directory(state.root / "local")
    submitted: list[Submitted] = []
    batches = group_call(made, None)
    names = [make_submission_id() for _ in batches]
    for batch, submission in zip(batches, names, strict=True):
        place = find_place(batches, names, [entry.job_id for entry in submitted])
        packs = build_packs(
            batch,
            submission,
            environment=environ,
            options=SbatchOptions(()),
            directory=directory,
            local=True,
            share=policy.share,
            place=place,
            settings=settings.for_runner,
        )
        job_id = _claim_id(state)
        records = [pack.record for pack in packs]
        with state.writing(packs):
            for record in records:
                state.record_pack_job(record, job_id)
            for pack in packs:
                _start_runner(state, pack.record.pack_id, job_id, settings, environ)
            # Only now: a sweep of another csub takes a pack without a submitter or runner for dead.
            state.forget_lock(submission)
        submitted.append(Submitted(job_id, tuple(records)))
    return made, submitted


def restart_local(
    state: State, record: PackRecord, job_id: str, settings: Settings, released: Sequence[int]
) -> bool:
    """Run a pack again whose runner has left held members behind; False while it still lives.

    Raises:
        StateError: The runner cannot be started.
    """
    path = state.pack_path(record.pack_id)
    # The new runner waits for this lock: a kill in between leaves the members held.
    with hold_lock(path / "lock", LOCK_WAIT_S) as locked:
        if not locked or is_local_alive(path):
            return False
        write_atomic(state.open / record.pack_id, b"")
        environ = dict(record.client_environment) or dict(os.environ)
        _start_runner(state, record.pack_id, job_id, settings, environ)
        for number in released:
            forget_hold(path, number)
    return True


def _claim_id(state: State) -> str:
    """The next local id: `L1`, `L2`, ...; a directory claims it."""
    number = 1 + max(
        (int(name) for name in os.listdir(state.root / "local") if name.isdigit()), default=0
    )
    while True:
        try:
            os.mkdir(state.root / "local" / str(number), 0o700)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            raise StateError(
                f"cannot write {state.root}: {os.strerror(error.errno or 0)}"
            ) from error
        return f"L{number}"


def _start_runner(
    state: State, pack_id: str, job_id: str, settings: Settings, environ: Mapping[str, str]
) -> None:
    path = state.pack_path(pack_id)
    write_atomic(path / "alive", b"")
    with explain_os_errors("start a runner for", path):
        # The lock is the open file's, and the runner's for as long as it lives.
        lock = os.open(path / "alive", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock, True)
        log = os.open(path / "pack.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        words = (str(path), "--local", job_id)
        try:
            os.posix_spawn(
                settings.python,
                [settings.python, "-IB", "-m", "slurm_colloc.runtime", *words],
                dict(environ),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
            )
        finally:
            for descriptor in (lock, log, null):
                os.close(descriptor)
