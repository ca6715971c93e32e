"""Packs without Slurm: on a workstation, or where Slurm cannot be installed.

A pack is run by the same runner, as a process of its own session on this machine. It waits for a
free GPU of the machine (or, where there is none, for the machine) and then runs its members.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import StateError
from slurm_colloc.model.plan import Policy
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.atomic_files import explain_os_errors, make_directory, write_atomic
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack.member_holds import forget_hold
from slurm_colloc.store.pack.pack_directory import is_local_alive
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.build_packs import build_packs
from slurm_colloc.submission.packs.call_batches import find_place
from slurm_colloc.submission.packs.sbatch_options import SbatchOptions
from slurm_colloc.submission.packs.submit_batch import Submitted, group_call
from slurm_colloc.submission.plan.plan_call import CallPlan, plan_call

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
        submitted.append(
            Submitted(job_id, tuple(records), tuple(record.members for record in records))
        )
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
