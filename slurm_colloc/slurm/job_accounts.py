"""Whose jobs were, in which account and partition: one question to sacct for many jobs."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.slurm.accounting import count_gpus
from slurm_colloc.slurm.run_command import build_client_environment, run_slurm

_FORMAT = (
    "JobID,JobIDRaw,Cluster,UID,User,Account,Partition,Start,End,NodeList,AllocTRES%400,"
    "AdminComment"
)
_WAIT_S = 60.0
_JOBS_AT_ONCE = 500
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_FIELDS = 12
_CPUS = re.compile(r"(?:^|,)cpu=([0-9]{1,9})(?:,|$)", re.ASCII)
_MEMORY = re.compile(r"(?:^|,)mem=([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMGT])(?:,|$)", re.ASCII)
_UNIT_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1048576.0}


@dataclass(frozen=True)
class AccountedJob:
    """A job as Slurm's accounting has it.

    Attributes:
        job_id: `4711`, or `4711_2` for an element of an array.
        raw_id: The number that it has by itself.
        cluster: The cluster that ran it.
        uid: Its owner's: that of the owner's name here, for sacct's own is 0 of jobs whose end the
            accounting learns of before their start (seen on 22.05). None where it is not known.
        user: Its owner.
        account: Its account.
        partition: Its partition; empty of such jobs.
        started_at: In seconds since the epoch; None before its start.
        ended_at: None before its end.
        nodes: Its nodes, as Slurm writes a list of them.
        gpus: GPUs that it had.
        cpus: CPUs that it had; 0 where not known.
        memory_mb: Host memory that it had; None where not known.
        admin_comment: AdminComment.
    """

    job_id: str
    raw_id: str
    cluster: str
    uid: int | None
    user: str
    account: str
    partition: str
    started_at: float | None
    ended_at: float | None
    nodes: str
    gpus: int
    cpus: int
    memory_mb: float | None
    admin_comment: str


def read_accounts(
    job_ids: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> dict[str, AccountedJob]:
    """The jobs that Slurm's accounting knows, by id.

    Args:
        job_ids: `4711`, `4711_2`.
        environment: Environment of sacct; None for the caller's, filtered.

    Raises:
        SlurmError: sacct fails, or there is no accounting.
    """
    client = build_client_environment(os.environ) if environment is None else dict(environment)
    found: dict[str, AccountedJob] = {}
    for place in range(0, len(job_ids), _JOBS_AT_ONCE):
        part = job_ids[place : place + _JOBS_AT_ONCE]
        output = run_slurm(
            [
                "sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
                f"--jobs={','.join(part)}", f"--format={_FORMAT}",
            ],
            environment={**client, "SLURM_TIME_FORMAT": "%s"},
            timeout_s=_WAIT_S,
        )  # fmt: skip
        found |= parse_accounts(output.stdout)
    return found


def parse_accounts(text: str) -> dict[str, AccountedJob]:
    """Read sacct's lines with times in seconds; a line of another shape is left out; pure.

    AdminComment comes last, and may hold whatever a site puts there.
    """
    found = {}
    for line in text.split("\n"):
        fields = line.strip().split("|", _FIELDS - 1)
        if len(fields) != _FIELDS or not _NUMBER.fullmatch(fields[3]):
            continue
        job_id, raw_id, cluster, uid, user, account, partition, *rest = fields
        start, end, nodes, tres, comment = rest
        # Of a job that was requeued the last row counts.
        found[job_id] = AccountedJob(
            job_id, raw_id, cluster, _find_uid(user, int(uid)), user, account, partition,
            _read_moment(start), _read_moment(end), nodes,
            count_gpus(tres), _count_cpus(tres), _count_memory_mb(tres), comment,
        )  # fmt: skip
    return found


def _find_uid(user: str, told: int) -> int | None:
    try:
        own = pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        own = None
    if own is None:
        # 0 may stand for anyone.
        return told or None
    # Two that differ are no answer.
    return own if told in (0, own) else None


def _read_moment(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _count_cpus(tres: str) -> int:
    match = _CPUS.search(tres)
    return int(match[1]) if match else 0


def _count_memory_mb(tres: str) -> float | None:
    match = _MEMORY.search(tres)
    return float(match[1]) * _UNIT_MB[match[2]] if match else None


def set_admin_comment(
    raw_id: str, text: str, *, environment: Mapping[str, str] | None = None
) -> None:
    """Write a job's AdminComment, which only Slurm's administrators may.

    Args:
        raw_id: The job's own number.
        text: The comment.
        environment: Environment of sacctmgr; None for the caller's, filtered.

    Raises:
        SlurmError: Slurm refuses it, or does not answer.
    """
    client = build_client_environment(os.environ) if environment is None else dict(environment)
    run_slurm(
        ["sacctmgr", "-i", "modify", "job", "where", f"jobid={raw_id}", "set",
         f"admincomment={text}"],
        environment=client,
        timeout_s=_WAIT_S,
    )  # fmt: skip
