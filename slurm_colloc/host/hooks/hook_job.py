"""The job as slurmd describes it to a hook; pure. Only the comment is the user's own text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_colloc.errors import UsageProblem
from slurm_colloc.host.hooks.checkpoint import SLUID, is_job_id
from slurm_colloc.model.late_definitions import dataclass

DEFAULT_SLURM_CONF = "/etc/slurm/slurm.conf"

_NUMBER = re.compile(r"[0-9]{1,10}")
_NO_ID = 2**32 - 1
_GPU_LIST = re.compile(r"[0-9]{1,4}(?:,[0-9]{1,4}){0,255}")


@dataclass(frozen=True)
class HookJob:
    """What a hook knows of its job.

    Args:
        job_id: Its number in Slurm, digits only.
        uid: Whose it is; None where slurmd does not say, as in an epilog without a credential.
        gid: That user's group; None likewise.
        comment: The job's comment, the user's text; empty for none.
        partition: Where it runs.
        account: Which account it is charged to.
        gpus: Slurm's numbers of its GPUs on this node (`slurm_index`, the minor number of the
            device file); empty for none, None where they are no such list.
        node: Slurm's name of this node.
        restart: How often Slurm has restarted the job.
        cpus: How many CPUs it has on this node; None where slurmd does not say it in one number.
        sluid: Slurm's other name of the job (25.11 and later); empty for none.
        slurm_conf: Where slurmd has its slurm.conf.
    """

    job_id: str
    uid: int | None
    gid: int | None
    comment: str = ""
    partition: str = ""
    account: str = ""
    gpus: tuple[int, ...] | None = ()
    node: str = ""
    restart: int = 0
    cpus: int | None = None
    sluid: str = ""
    slurm_conf: str = DEFAULT_SLURM_CONF


def read_hook_job(environ: Mapping[str, str]) -> HookJob:
    """Read the variables of a prolog or an epilog.

    Raises:
        UsageProblem: There is no job id.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not is_job_id(job_id):
        raise UsageProblem("SLURM_JOB_ID is not a job's number: this is for slurmd to call")
    return HookJob(
        job_id=job_id,
        uid=_read_id(environ, "SLURM_JOB_UID"),
        gid=_read_id(environ, "SLURM_JOB_GID"),
        comment=environ.get("SLURM_JOB_COMMENT", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        account=environ.get("SLURM_JOB_ACCOUNT", ""),
        gpus=_read_gpus(environ.get("SLURM_JOB_GPUS", "")),
        node=environ.get("SLURMD_NODENAME", ""),
        restart=_read_number(environ, "SLURM_JOB_RESTART_COUNT") or 0,
        cpus=_read_number(environ, "SLURM_JOB_CPUS_PER_NODE") or None,
        sluid=_read_sluid(environ.get("SLURM_JOB_SLUID", "")),
        slurm_conf=environ.get("SLURM_CONF") or DEFAULT_SLURM_CONF,
    )


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def _read_sluid(text: str) -> str:
    return text if SLUID.fullmatch(text) else ""


def _read_id(environ: Mapping[str, str], name: str) -> int | None:
    number = _read_number(environ, name)
    # The kernel takes the largest one for "leave it as it is", which is root.
    return number if number is not None and number < _NO_ID else None


def _read_gpus(text: str) -> tuple[int, ...] | None:
    if not text:
        return ()
    if not _GPU_LIST.fullmatch(text):
        return None
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(set(numbers)) == len(numbers) else None
