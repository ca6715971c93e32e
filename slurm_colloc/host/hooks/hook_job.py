"""The job as slurmd describes it to a hook; pure. Only the comment is the user's own text.

Also: what root has begun for a job on this node, as one value; its file is run_directory's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.host.system.node_processes import ProcessId, read_boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.plan_cut import MigClaim


# ---- What root has begun for a job on this node, as one value; its file is run_directory's -------
#
# Everything that is undone is undone from here and by job id alone: a job's comment can change
# while it runs, and an epilog may come without any credential.

DEFAULT_RUN = "/run/slurm_colloc"
SETUP = "setup.json"
SETUP_SCHEMA = 1
SCHEMA = 1

PREPARING = "preparing"
READY = "ready"
UNDOING = "undoing"
PHASES = (PREPARING, READY, UNDOING)

SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{12,13}")
"""What Slurm calls a job from 25.11 on: `s` and base 32 (src/common/sluid.c)."""

_JOB_ID = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class Checkpoint:
    """One job, for the hook that has to undo what was done for it.

    Args:
        job_id: Its number in Slurm.
        uid: Whose job it is.
        gid: That user's group.
        phase: `preparing`, `ready` or `undoing`.
        mode: What is prepared: `mps` or `mig`, or empty for nothing.
        restart: How often Slurm had restarted the job.
        gpus: UUIDs of its GPUs.
        daemons: Names of the daemons' directories below RUN/JOBID.
        cgroups: Control groups made for them.
        compute_modes: The GPUs' compute modes from before, by UUID; only of those that were to be
            changed.
        power_limits: The GPUs' power limits from before and as they were to be set, in mW, by UUID;
            only of those that were to be changed.
        mig: What is changed of the GPUs' MIG; each had no instance before.
        sluid: Slurm's other name of the job, which its control groups have from 26.05 on; empty
            before 25.11.
        seen: Slurm was seen to run something of the job.
        boot: The boot in which this was written.
        made_at: When (seconds since 1970).
        doubt: Why it is not known whether a GPU is divided for the job; empty where it is. Never in
            a file.
    """

    job_id: str
    uid: int
    gid: int
    phase: str = PREPARING
    mode: str = ""
    restart: int = 0
    gpus: tuple[str, ...] = ()
    daemons: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    compute_modes: Mapping[str, str] = field(default_factory=dict)
    power_limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    mig: tuple[MigClaim, ...] = ()
    sluid: str = ""
    seen: bool = False
    boot: str = field(default_factory=read_boot_id)
    made_at: float = field(default_factory=time.time)
    doubt: str = ""

    @property
    def keeps_settings(self) -> bool:
        """Something of a GPU was to be set that has to be set back."""
        return bool(self.compute_modes or self.power_limits)

    @property
    def divides(self) -> bool:
        """A GPU is, or may be, divided for the job in this boot."""
        return bool(self.mig or self.doubt) and self.boot == read_boot_id()


class DamagedCheckpoint(StateError):
    """A checkpoint cannot be read, or is of a newer version.

    Args:
        message: In words.
        data: What is in its file.
    """

    def __init__(self, message: str, data: bytes = b"") -> None:
        super().__init__(message)
        self.data = data


def is_job_id(text: str) -> bool:
    """Whether a text is a job's number."""
    return _JOB_ID.fullmatch(text) is not None


def pack_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint as the JSON object of its file; pure."""
    values = dict(vars(checkpoint))
    del values["doubt"]
    return {
        "schema": SCHEMA,
        **values,
        "compute_modes": dict(checkpoint.compute_modes),
        "power_limits": {gpu: list(both) for gpu, both in checkpoint.power_limits.items()},
        "mig": [_describe_claim(claim) for claim in checkpoint.mig],
    }


def parse_checkpoint(job_id: str, value: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint in such an object; pure.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: It is another job's.
    """
    if value["job_id"] != job_id or value["phase"] not in PHASES:
        raise ValueError("it is not of this job")
    return Checkpoint(
        job_id=job_id,
        uid=int(value["uid"]),
        gid=int(value["gid"]),
        phase=str(value["phase"]),
        mode=str(value["mode"]),
        restart=int(value["restart"]),
        gpus=tuple(map(str, value["gpus"])),
        daemons=tuple(map(str, value["daemons"])),
        cgroups=tuple(map(str, value["cgroups"])),
        compute_modes={str(gpu): str(mode) for gpu, mode in value["compute_modes"].items()},
        power_limits=_parse_limits(value),
        mig=tuple(map(_parse_claim, value["mig"])),
        sluid=str(value["sluid"]),
        seen=bool(value["seen"]),
        boot=str(value["boot"]),
        made_at=float(value["made_at"]),
    )


def guess_checkpoint(job_id: str, problem: DamagedCheckpoint) -> Checkpoint:
    """What can be undone by a checkpoint that cannot be read whole; pure.

    Args:
        job_id: The job.
        problem: What was raised.
    """
    try:
        value = json.loads(problem.data.decode("ascii"))
        return Checkpoint(
            job_id,
            -1,
            -1,
            phase=UNDOING,
            gpus=tuple(map(str, value["gpus"])),
            power_limits=_parse_limits(value),
            mig=tuple(map(_parse_claim, value["mig"])),
            boot=str(value["boot"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Checkpoint(job_id, -1, -1, phase=UNDOING, doubt=str(problem))


def _parse_limits(value: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    # One of the version before has none.
    limits = value.get("power_limits", {})
    return {str(gpu): (int(before), int(limit)) for gpu, (before, limit) in limits.items()}


# Most jobs have none, and their hooks do not load what reads them.


def _describe_claim(claim: MigClaim) -> dict[str, Any]:
    from slurm_colloc.host.mig.plan_cut import describe_claim

    return describe_claim(claim)


def _parse_claim(value: Mapping[str, Any]) -> MigClaim:
    from slurm_colloc.host.mig.plan_cut import parse_claim

    return parse_claim(value)


@dataclass(frozen=True)
class Leader:
    """A daemon's first process, as it wrote itself down while it was still root's.

    Args:
        id: Which process; it leads a session.
        uid: Whose it became then.
        groups: The control groups that it had entered.
    """

    id: ProcessId
    uid: int
    groups: tuple[str, ...]


_LEADER = re.compile(r"([1-9][0-9]{0,9}) ([0-9]{1,20}) ([0-9]{1,10})\n((?:/[!-~]{1,4000}\n){0,32})")


def parse_leader(text: str) -> Leader | None:
    """Read what a daemon's process wrote before it was the user's; None where it broke off.

    Args:
        text: `PID START UID`, then a line for each control group.
    """
    match = _LEADER.fullmatch(text)
    if match is None:
        return None
    return Leader(ProcessId(int(match[1]), int(match[2])), int(match[3]), tuple(match[4].split()))


# ---- The job as slurmd describes it to a hook; pure. Only the comment is the user's own text -----

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
    sluid = environ.get("SLURM_JOB_SLUID", "")
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
        sluid=sluid if SLUID.fullmatch(sluid) else "",
        slurm_conf=environ.get("SLURM_CONF") or DEFAULT_SLURM_CONF,
    )


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


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
