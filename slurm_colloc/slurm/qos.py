"""Qualities of service: two questions to Slurm's accounting and one to its controller."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.qos import Qos, QosTable
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.slurm.commands import build_client_environment, run_slurm

QOS_WAIT_S = 2.0

_OVER_PARTITION = "OverPartQOS"
_NONE = ("", "N/A", "(null)")
_NO_ACCOUNTS = re.compile(r"accounting_storage/slurmdbd'? is supported")
"""What sacctmgr says alone is supported, in a cluster that has another accounting or none."""
_PARTITION = re.compile(r"(?:^|\s)(PartitionName|Default|QoS)=(\S*)")


def read_qos(
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = QOS_WAIT_S,
) -> QosTable:
    """The qualities of service of the cluster, and which the user and the partitions have.

    Args:
        environment: Environment of the commands; None for the user's, filtered.
        timeout_s: When to give up one of them.
    """
    client = build_client_environment(os.environ) if environment is None else dict(environment)

    def ask(*argv: str) -> str:
        return run_slurm(argv, environment=client, timeout_s=timeout_s).stdout

    accounting = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        known = parse_qos(ask(*accounting, "qos", "format=name,maxwall,flags"))
        if all(entry.max_wall_s is None for entry in known.values()):
            return QosTable(known)
        defaults = parse_defaults(
            ask(*accounting, "assoc", "where", f"user={_find_user()}",
                "format=account,partition,defaultqos")
        )  # fmt: skip
        partitions, usual = parse_partitions(ask("scontrol", "--oneliner", "show", "partition"))
    except SlurmError as problem:
        # Where nothing is accounted there is no QoS: that is an answer.
        return QosTable(unknown="" if _NO_ACCOUNTS.search(problem.stderr) else problem.message)
    return QosTable(known, defaults, partitions, usual)


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
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
        try:
            max_wall_s = parse_time_limit_s(fields[1]) if fields[1] else None
        except ValueError:
            max_wall_s = None
        found[fields[0]] = Qos(max_wall_s, _OVER_PARTITION in fields[2].split(","))
    return found


def parse_defaults(text: str) -> tuple[tuple[str, str, str], ...]:
    """Read `sacctmgr show assoc format=account,partition,defaultqos` with -nP; pure."""
    rows = [line.strip().split("|") for line in text.splitlines()]
    return tuple((row[0], row[1], row[2]) for row in rows if len(row) == 3 and row[0])


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
