"""Packs for tests: what csub writes into a state directory at a submission."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan, PackRequest, SharingMode
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.indexes import build_pack_id
from slurm_colloc.store.pack_directory import MemberSpec, NewMember, NewPack, PackRecord

SCRIPT = b"#!/bin/sh\necho hello\n"
ENVIRONMENT = b"HOME=/home/ada\0SECRET=\xff\xfe"


def build_member(
    number: int, script: bytes = SCRIPT, *, plan: Mapping[str, Any] | None = None, **job: Any
) -> NewMember:
    """A member; `plan` and `job` are fields of its plan and its job that are not the usual ones."""
    asked = Job(number, f"job{number}", "job.sh", ("a b",), "/tmp", cpus=2, gpus=1)
    planned = MemberPlan(number - 1, 2, 100, 60)
    spec = MemberSpec(
        dataclasses.replace(asked, **job), dataclasses.replace(planned, **(plan or {})), 0o022
    )
    return NewMember(spec, script, ENVIRONMENT)


def replace_job(member: NewMember, change: Callable[[Job], Job]) -> NewMember:
    """The same member with a changed job."""
    spec = dataclasses.replace(member.spec, job=change(member.spec.job))
    return dataclasses.replace(member, spec=spec)


def build_pack(
    submission: str,
    index: int = 0,
    members: int | Sequence[NewMember] = 2,
    indices: tuple[int, ...] = (0,),
    **record: Any,
) -> NewPack:
    """A pack of a submission.

    Args:
        submission: The name of the submission.
        index: Which of its array tasks the pack is.
        members: How many members, numbered from 1 on, or themselves.
        indices: All array tasks of the submission.
        **record: Other fields of pack.json that are not the usual ones.
    """
    if isinstance(members, int):
        members = [build_member(number) for number in range(1, members + 1)]
    usual = PackRecord(
        pack_id=build_pack_id(submission, index),
        submission=submission,
        index=index,
        indices=indices,
        is_array=len(indices) > 1,
        created_at=1.5,
        name="job",
        mode=SharingMode.TIMESLICE,
        degree=4,
        request=PackRequest(1, None, 4, None, None),
        group=(),
        reasons=(),
        members=tuple(entry.spec.job.number for entry in members),
        submit_directory="/tmp",
        submit_host="here",
        client_environment=(),
        slurm_options=(),
        cluster="here",
    )
    return NewPack(dataclasses.replace(usual, **record), tuple(members))


def write_packs(state: State, *packs: NewPack, job_id: str | None = None) -> Path:
    """Write the packs of a submission, and the Slurm job that they have; the first one's path."""
    state.prepare()
    with state.writing(packs):
        if job_id is not None:
            state.record_job([pack.record for pack in packs], job_id)
    return state.pack_path(packs[0].record.pack_id)
