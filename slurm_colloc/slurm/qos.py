"""Qualities of service: two questions to Slurm's accounting and one to its controller."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.qos import USUAL, Association, Qos, QosTable
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.slurm.commands import build_client_environment, run_slurm

QOS_WAIT_S = 2.0

_OVER_PARTITION = "OverPartQOS"
_OVER_MAX_TIME = "PartitionTimeLimit"
_NONE = ("", "N/A", "(null)")
_NO_ACCOUNTS = re.compile(r"accounting_storage/slurmdbd'? is supported")
"""What sacctmgr says alone is supported, in a cluster that has another accounting or none."""
_PARTITION = re.compile(r"(?:^|\s)(PartitionName|Default|QoS)=(\S*)")


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
    client = build_client_environment(os.environ) if environment is None else dict(environment)

    def ask(*argv: str) -> str:
        return run_slurm(argv, environment=client, timeout_s=timeout_s).stdout

    accounting = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        known = parse_qos(ask(*accounting, "qos", "format=name,maxwall,flags"))
        # Of the user and not of the associations: only this tells the default account too.
        rows = parse_associations(
            ask(*accounting, "user", "where", f"name={_find_user()}", "withassoc",
                "format=cluster,defaultaccount,account,partition,defaultqos,qos,maxwall"),
            cluster,
        )  # fmt: skip
        bounds = [entry.max_wall_s for entry in known.values()] + [row.max_wall_s for row in rows]
        lifted = any(entry.over_max_time for entry in known.values())
        if not lifted and all(bound is None for bound in bounds):
            return QosTable(known)
        partitions, usual = parse_partitions(ask("scontrol", "--oneliner", "show", "partition"))
    except SlurmError as problem:
        # Where nothing is accounted there is no QoS: that is an answer.
        return QosTable(unknown="" if _NO_ACCOUNTS.search(problem.stderr) else problem.message)
    return QosTable(known, rows, partitions, usual)


def _find_user() -> str:
    # LOGNAME may be somebody else's, and Slurm goes by the uid.
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def parse_qos(text: str) -> dict[str, Qos]:
    """Read `sacctmgr show qos format=name,maxwall,flags` with -nP; pure.

    A line of another shape is left out; a MaxWall that is no time is none.
    """
    found = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 3 or not fields[0]:
            continue
        flags = fields[2].split(",")
        found[fields[0].lower()] = Qos(
            _parse_wall_s(fields[1]), _OVER_PARTITION in flags, _OVER_MAX_TIME in flags
        )
    return found


def parse_associations(text: str, cluster: str = "") -> tuple[Association, ...]:
    """Read `sacctmgr show user withassoc` with -nP and the fields that `read_qos` asks for; pure.

    Who has no default QoS gets the only one that they may have, where it is one, and else the
    usual one (seen on 22.05).

    Args:
        text: What sacctmgr printed.
        cluster: The cluster whose rows count; empty for all.
    """
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 7 or not fields[2]:
            continue
        where, default, account, partition, qos, allowed, wall = fields
        if cluster and where.lower() != cluster.lower():
            continue
        only = allowed if "," not in allowed else ""
        found.append(
            Association(
                account, partition, account == default, qos or only or USUAL, _parse_wall_s(wall)
            )
        )
    return tuple(found)


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
    for line in text.splitlines():
        fields = dict(_PARTITION.findall(line))
        name = fields.get("PartitionName", "")
        if name and fields.get("QoS", "") not in _NONE:
            found[name] = fields["QoS"]
        if fields.get("Default") == "YES":
            usual = name
    return found, usual
