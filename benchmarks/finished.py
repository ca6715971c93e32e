"""A state directory as it looks after long use: packs that have ended."""

from __future__ import annotations

import os
import time

from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.settings import Settings
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    remove_environment,
    write_state,
)
from slurm_colloc.store.pack_directory import write_ended
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.packs.build_packs import SbatchOptions, build_packs
from slurm_colloc.submission.packs.call_batches import group_into_batches
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.plan_call import plan_call

FIRST_JOB_ID = 10_000_000


def make_finished_packs(state: State, count: int, directory: str) -> None:
    """Write packs of four members each as csub and the runner would, up to their end.

    Args:
        state: Where.
        count: How many.
        directory: Holds `x.sh`, the submission directory.
    """
    argv = ["--array=0-3", "--gres=gpu:1", "--time=10", "--mem=1G", "x.sh"]
    call = collect_call(argv, os.environ, directory, pack=False)
    state.prepare()
    for number in range(count):
        _make_finished_pack(state, call, directory, str(FIRST_JOB_ID + number), number)


def _make_finished_pack(state: State, call: Call, directory: str, job_id: str, number: int) -> None:
    settings = Settings()
    made = plan_call(call, choose_policy(call, settings), settings, None)
    batch = group_into_batches(made.packs, made.plan.packs_at_once)[0]
    packs = build_packs(
        batch,
        f"20260101-000000-{number:08x}",
        environment={},
        options=SbatchOptions(()),
        directory=directory,
    )
    with state.writing(packs):
        pass
    for pack in packs:
        state.record_job([pack.record], job_id)
        path = state.pack_path(pack.record.pack_id)
        attempt = begin_attempt(path, 1)
        for member in pack.record.members:
            inbox.take(str(path), member)
            write_state(
                path,
                member,
                StateRecord(
                    MemberState.COMPLETED,
                    attempt,
                    starts=1,
                    started_at=time.time() - 60,
                    ended_at=time.time(),
                    exit_code=ExitCode(),
                    node="node1",
                    gpus=("0",),
                ),
            )
            remove_environment(path, member)
        inbox.close(str(path))
        write_ended(path, SlurmJobState.COMPLETED)
        state.forget_open(pack.record.pack_id)
