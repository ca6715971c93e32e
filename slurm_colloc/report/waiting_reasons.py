"""Why something waits: Slurm's reasons, and csub's own, in words; pure.

The names are those of squeue(1), JOB REASON CODES, 22.05 to 26.05. A reason that is not here is
shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_colloc.store.member_states import PARKED


@dataclass(frozen=True)
class Reason:
    """A reason in words.

    Attributes:
        meaning: What it means, as a clause.
        advice: What the user can do, as a sentence without a full stop; empty for nothing but
            waiting.
        is_for_ever: Waiting does not help: the request or Slurm's configuration has to change.
        needs_release: Slurm holds it after a fault that is not the job's; its user may release it.
    """

    meaning: str
    advice: str = ""
    is_for_ever: bool = False
    needs_release: bool = False


REASONS: dict[str, Reason] = {
    "Resources": Reason(
        "what it asks for is not free",
        "a smaller request starts sooner: fewer CPUs, less host memory, a shorter --time",
    ),
    "Priority": Reason(
        "jobs with a higher priority come first",
        "a shorter --time lets it slip into gaps; sprio -l shows what priorities consist of",
    ),
    "Dependency": Reason("a job that it depends on has not ended"),
    "DependencyNeverSatisfied": Reason(
        "a job that it depends on did not end as required, so it will never start",
        "cancel it, or drop the condition: scontrol update JobId=ID Dependency=",
        is_for_ever=True,
    ),
    "JobHeldUser": Reason("it is held", "csub release lets it go on"),
    "JobHeldAdmin": Reason(
        "an administrator holds it, or Slurm does after its start failed",
        "scontrol show job tells more; only an administrator can release it",
    ),
    "BeginTime": Reason(
        "its begin time has not come",
        "scontrol update JobId=ID StartTime=now lets it start at once",
    ),
    "JobArrayTaskLimit": Reason("as many packs of its array are running as its %limit allows"),
    "PartitionDown": Reason("its partition is not starting jobs", "sinfo shows partitions"),
    "PartitionInactive": Reason("its partition is not accepting jobs", "sinfo shows partitions"),
    "PartitionNodeLimit": Reason(
        "its partition does not allow that many nodes, or they are down",
        "scontrol show partition shows the limits",
    ),
    "PartitionTimeLimit": Reason(
        "it asks for more time than its partition allows",
        "submit it with a shorter --time",
        is_for_ever=True,
    ),
    "PartitionConfig": Reason(
        "its partition has no node that could hold it: too many CPUs, GPUs or too much memory",
        "sinfo -o '%P %c %m %G' shows what each partition has; submit it with less",
        is_for_ever=True,
    ),
    "ReqNodeNotAvail": Reason(
        "a node that it needs is down, drained or reserved",
        "sinfo -R shows which and why; choose others with --nodelist or --exclude",
    ),
    "NodeDown": Reason("a node that it needs is down", "sinfo -R shows why"),
    "BadConstraints": Reason(
        "no node can ever give what it asks for",
        "check --constraint, --gres, --mem and CPUs",
        is_for_ever=True,
    ),
    "Licenses": Reason("it waits for a licence"),
    "Reservation": Reason("its reservation has not begun, or is full"),
    "ReservationDeleted": Reason(
        "its reservation is gone", "cancel it and submit it without", is_for_ever=True
    ),
    "InvalidAccount": Reason(
        "its account is not valid", "sacctmgr show assoc user=$USER", is_for_ever=True
    ),
    "InvalidQOS": Reason(
        "its QoS is not valid", "sacctmgr show assoc user=$USER", is_for_ever=True
    ),
    "QOSNotAllowed": Reason(
        "its partition or account does not allow its QoS",
        "submit it with another --qos or --partition",
        is_for_ever=True,
    ),
    "QOSJobLimit": Reason("as many jobs are running as its QoS allows"),
    "QOSResourceLimit": Reason("the resources that its QoS allows are in use"),
    "QOSTimeLimit": Reason(
        "its QoS does not allow that much time", "submit it with a shorter --time", is_for_ever=True
    ),
    "QOSUsageThreshold": Reason("its account's usage is above the threshold of its QoS"),
    "AssociationJobLimit": Reason("as many jobs are running as its account allows"),
    "AssociationResourceLimit": Reason("the resources that its account allows are in use"),
    "AssociationTimeLimit": Reason("its account has used its time"),
    "MaxMemPerLimit": Reason(
        "it asks for more host memory than Slurm allows per node or CPU",
        "submit it with less --mem",
        is_for_ever=True,
    ),
    "Prolog": Reason("the node is being prepared for it"),
    "Cleaning": Reason("its last attempt is being cleaned up; then it starts again"),
    "NodeNotAvail": Reason("a node that it needs is not available"),
    "BurstBufferResources": Reason("it waits for burst buffer space"),
    "BurstBufferStageIn": Reason("its files are being staged in"),
    "DeadLine": Reason(
        "it cannot end before its --deadline", "submit it with a later --deadline", is_for_ever=True
    ),
    "launch_failed_requeued_held": Reason(
        "Slurm could not start it on its node, and holds it since",
        "csub release, or scontrol release, lets it try again; if that fails too, an "
        "administrator must look at the node's prolog",
        needs_release=True,
    ),
    "JobHoldMaxRequeue": Reason(
        "Slurm requeued it too often and holds it",
        "csub release, or scontrol release, lets it try again",
        needs_release=True,
    ),
    "None": Reason("Slurm has not looked at it yet"),
    "Degree": Reason(
        "its pack runs as many members at the same time as its degree allows",
        "it starts by itself as soon as a place becomes free",
    ),
    PARKED: Reason(
        "it has started, and its processes are paused until a place is free for it",
        "it continues by itself; csub why says which degree is best in its pack",
    ),
}

# QOSMaxCpuPerUserLimit, AssocGrpGRESMinutes, MaxJobsPerAccount, ...
_LIMIT = re.compile(r"(QOS|Assoc)?(Grp|Max|Min)([A-Z]\w*?)(?:Limit)?")
_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]+|\d+")
_NAMES = {
    "Cpu": "CPUs", "CPU": "CPUs", "GRES": "GPUs and other GRES", "Mem": "host memory",
    "Memory": "host memory", "Job": "job", "MB": "MB",
}  # fmt: skip


def find_reason(text: str) -> Reason | None:
    """A reason by Slurm's word for it; None where it is not known.

    Args:
        text: As squeue prints it: `Resources`, `ReqNodeNotAvail, UnavailableNodes:n1`.
    """
    word = re.split(r"[,:( ]", normalise_reason(text.strip()), maxsplit=1)[0]
    if word in REASONS:
        return REASONS[word]
    match = _LIMIT.fullmatch(word)
    if match is None:
        return None
    whose = {"QOS": "its QoS", "Assoc": "its account"}.get(match[1] or "", "its partition or QoS")
    parts = [_NAMES.get(part, part.lower()) for part in _WORD.findall(match[3])]
    bound = {"Grp": "for all its jobs together", "Max": "at most", "Min": "at least"}[match[2]]
    return Reason(
        f"a limit of {whose} is reached: {' '.join(parts)} {bound}",
        "it starts when your other jobs end; sacctmgr show qos and show assoc list the limits",
    )


def normalise_reason(text: str) -> str:
    """Slurm's reason as its manual spells it: scontrol and squeue write some in sentences."""
    spelled = text.replace("_", " ")
    if spelled.startswith("Nodes required for job are DOWN"):
        return "ReqNodeNotAvail"
    if spelled == "launch failed requeued held":
        return "launch_failed_requeued_held"
    return text.replace(",_", ", ")


def describe_reason(text: str) -> str:
    """A reason as a clause with Slurm's word behind it: `... (Priority)`."""
    reason = find_reason(text)
    if reason is None:
        return f"Slurm's reason is {text}" if text else "Slurm has not looked at it yet"
    return f"{reason.meaning} ({text})"
