"""Qualities of service: two questions to Slurm's accounting and one to its controller.

Also: whose jobs were, in which account and partition: one question to sacct for many jobs.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, SlurmRefused
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.plan import USUAL, Association, PastJob, Qos, QosTable
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.slurm.run_command import build_client_environment, run_slurm

QOS_WAIT_S = 2.0

QOS_FIELDS = "name,maxwall,flags,maxjobspu,maxsubmitpu,maxtrespu,maxtres"
ASSOCIATION_FIELDS = (
    "cluster,defaultaccount,account,partition,defaultqos,qos,maxwall,"
    "maxjobs,maxsubmit,grptres,maxtres"
)
_COUNT = late_pattern(r"(?a)[0-9]{1,9}")
_OVER_PARTITION = "OverPartQOS"
_OVER_MAX_TIME = "PartitionTimeLimit"
_NONE = ("", "N/A", "(null)")
_NO_ACCOUNTS = late_pattern(r"accounting_storage/slurmdbd'? is supported")
"""What sacctmgr says alone is supported, in a cluster that has another accounting or none."""
_PARTITION = late_pattern(r"(?:^|\s)(PartitionName|Default|QoS)=(\S*)")


def read_qos(
    *,
    cluster: str = "",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = QOS_WAIT_S,
) -> QosTable:
    """The qualities of service of the cluster, and which the user and the partitions have.

    Args:
        cluster: The cluster's name: accounts may be those of several. Empty where not known.
        environment: Environment of the commands; None for the user's, filtered.
        timeout_s: When to give up one of them.
    """

    def ask(*argv: str) -> str:
        return run_slurm(argv, environment=environment, timeout_s=timeout_s).stdout

    accounting = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        known = parse_qos(ask(*accounting, "qos", f"format={QOS_FIELDS}"))
        # Of the user and not of the associations: only this tells the default account too.
        rows = parse_associations(
            ask(*accounting, "user", "where", f"name={_find_user()}", "withassoc",
                f"format={ASSOCIATION_FIELDS}"),
            cluster,
        )  # fmt: skip
        lifted = any(entry.over_max_time for entry in known.values())
        entries: list[Qos | Association] = [*known.values(), *rows]
        if not lifted and not any(map(_has_limit, entries)):
            return QosTable(known)
        partitions, usual = parse_partitions(ask("scontrol", "--oneliner", "show", "partition"))
    except SlurmError as problem:
        # Where nothing is accounted there is no QoS: that is an answer.
        return QosTable(unknown="" if _NO_ACCOUNTS.search(problem.stderr) else problem.message)
    return QosTable(known, rows, partitions, usual)


def _find_user() -> str:
    # LOGNAME may be another user's, and Slurm goes by the uid.
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def parse_qos(text: str) -> dict[str, Qos]:
    """Read `sacctmgr show qos` with -nP and QOS_FIELDS; pure.

    A line of another shape is left out; a limit that is none of its kind is none.
    """
    found = {}
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 7 or not fields[0]:
            continue
        name, wall, words, running, submitted, of_user, of_job = fields
        flags = words.split(",")
        found[name.lower()] = Qos(
            _parse_wall_s(wall),
            _OVER_PARTITION in flags,
            _OVER_MAX_TIME in flags,
            _find_least(running, submitted),
            count_gpus(of_user) or None,
            count_gpus(of_job) or None,
        )
    return found


def parse_associations(text: str, cluster: str = "") -> tuple[Association, ...]:
    """Read `sacctmgr show user withassoc` with -nP and ASSOCIATION_FIELDS; pure.

    Users without a default QoS get the only one that they may have, where it is one, and else the
    usual one (seen on 22.05).

    Args:
        text: What sacctmgr printed.
        cluster: The cluster whose rows count; empty for all.
    """
    found = []
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 11 or not fields[2]:
            continue
        where, default, account, partition, qos, allowed, wall, *limits = fields
        running, submitted, of_user, of_job = limits
        if cluster and where.lower() != cluster.lower():
            continue
        only = allowed if "," not in allowed else ""
        found.append(
            Association(
                account,
                partition,
                account == default,
                qos or only or USUAL,
                _parse_wall_s(wall),
                _find_least(running, submitted),
                count_gpus(of_user) or None,
                count_gpus(of_job) or None,
            )
        )
    return tuple(found)


def _has_limit(entry: Qos | Association) -> bool:
    limits = (entry.max_wall_s, entry.jobs_at_once, entry.gpus_at_once, entry.gpus_per_job)
    return any(limit is not None for limit in limits)


def _find_least(*texts: str) -> int | None:
    """The least of some numbers of jobs; None where none is limited."""
    return min((int(text) for text in texts if _COUNT.fullmatch(text)), default=None)


def _parse_wall_s(text: str) -> int | None:
    try:
        return parse_time_limit_s(text) if text else None
    except ValueError:
        return None


def parse_partitions(text: str) -> tuple[dict[str, str], str]:
    """Read `scontrol --oneliner show partition`; pure.

    Returns:
        The QoS of the partitions that have one, and the default partition; empty for none.
    """
    found, usual = {}, ""
    for line in text.split("\n"):
        fields = dict(_PARTITION.findall(line))
        name = fields.get("PartitionName", "")
        if name and fields.get("QoS", "") not in _NONE:
            found[name] = fields["QoS"]
        if fields.get("Default") == "YES":
            usual = name
    return found, usual


HISTORY_DAYS = 30
HISTORY_FORMAT = "ReqTRES%200,TimelimitRaw,Eligible,Start,Reason"
HISTORY_WAIT_S = 2.0

_DISABLED = "accounting storage is disabled"
_NUMBER = late_pattern(r"[0-9]{1,12}")
"""What int() takes, and what no later sum makes infinite."""
_OWN_LIMIT = ("Assoc", "QOS")
"""How reasons begin that tell of a limit of a user, an account or a QoS, and not of the queue."""
_GPUS = late_pattern(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,12})(?![0-9])")


def read_history(
    partition: str | None,
    *,
    own: bool = False,
    qos: str = "",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = HISTORY_WAIT_S,
) -> tuple[list[PastJob], str]:
    """The jobs of a partition that have started in the last days: of all users, where one may see.

    Args:
        partition: The partition; None for all.
        own: Only the user's.
        qos: Only those of this QoS; empty for all.
        environment: Environment of sacct; None for the user's, filtered.
        timeout_s: When to give up.

    Returns:
        The jobs, and why there are none; empty where there may be.
    """
    client = build_client_environment(os.environ) if environment is None else dict(environment)
    chosen = [f"--partition={partition}"] if partition else []
    chosen += [f"--qos={qos}"] if qos else []
    chosen += [] if own else ["--allusers"]
    try:
        output = run_slurm(
            [
                "sacct", "--allocations", "--noheader", "--parsable2",
                f"--starttime=now-{HISTORY_DAYS}days", f"--format={HISTORY_FORMAT}", *chosen,
            ],
            environment={**client, "SLURM_TIME_FORMAT": "%s"},
            timeout_s=timeout_s,
        )  # fmt: skip
    except SlurmRefused as problem:
        if _DISABLED in str(problem):
            return [], "Slurm keeps no accounts here"
        return [], f"sacct failed: {problem}"
    except SlurmNoAnswer:
        return [], f"sacct gave no answer within {timeout_s:g} s"
    except SlurmError as problem:
        return [], problem.message
    return parse_history(output.stdout), ""


def parse_history(text: str) -> list[PastJob]:
    """Read sacct's lines with HISTORY_FORMAT and times in seconds; pure.

    Left out are jobs that asked for no GPU, have not started, were held back by a limit of their
    association or QoS (Slurm counts them as eligible meanwhile), or whose lines have another shape.
    """
    jobs = []
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 5 or fields[4].startswith(_OWN_LIMIT):
            continue
        gpus = count_gpus(fields[0])
        if not gpus or not all(_NUMBER.fullmatch(field) for field in fields[2:4]):
            continue
        wait_s = int(fields[3]) - int(fields[2])
        # A job whose eligible time was set anew, as by a requeue, has not waited a negative time.
        if int(fields[2]) > 0 and wait_s >= 0:
            limit = int(fields[1]) * 60 if _NUMBER.fullmatch(fields[1]) else None
            jobs.append(PastJob(gpus, limit, float(wait_s)))
    return jobs


def count_gpus(tres: str) -> int:
    """The GPUs of a TRES text such as `cpu=4,gres/gpu=2,gres/gpu:h200=2`: that without a type."""
    counts = [(kind, int(number)) for kind, number in _GPUS.findall(tres)]
    whole = [number for kind, number in counts if not kind]
    return whole[0] if whole else sum(number for _, number in counts)


# ---- Whose jobs were, in which account and partition: one question to sacct for many jobs --------

_FORMAT = (
    "JobID,JobIDRaw,Cluster,UID,User,Account,Partition,Start,End,NodeList,AllocTRES%400,"
    "AdminComment"
)
_WAIT_S = 60.0
_JOBS_AT_ONCE = 500
_DIGITS = late_pattern(r"(?a)[0-9]{1,12}")
_FIELDS = 12
_CPUS = late_pattern(r"(?a)(?:^|,)cpu=([0-9]{1,9})(?:,|$)")
_MEMORY = late_pattern(r"(?a)(?:^|,)mem=([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMGT])(?:,|$)")
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
        if len(fields) != _FIELDS or not _DIGITS.fullmatch(fields[3]):
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
    return float(text) if _DIGITS.fullmatch(text) else None


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
    run_slurm(
        ["sacctmgr", "-i", "modify", "job", "where", f"jobid={raw_id}", "set",
         f"admincomment={text}"],
        environment=environment,
        timeout_s=_WAIT_S,
    )  # fmt: skip
