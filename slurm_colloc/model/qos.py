"""How long jobs may run by their quality of service (QoS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USUAL = "normal"
"""The QoS that Slurm makes itself, and gives to users who have no default of their own."""


@dataclass(frozen=True)
class Qos:
    """A quality of service.

    Attributes:
        max_wall_s: Its MaxWall in seconds; None for no limit.
        over_partition: It counts before the partition's own QoS (OverPartQOS).
    """

    max_wall_s: int | None = None
    over_partition: bool = False


@dataclass(frozen=True)
class QosTable:
    """What Slurm tells of its qualities of service.

    Attributes:
        known: Each by its name.
        defaults: The user's own: (account, partition, default QoS); empty texts for none.
        partitions: QoS of partitions that have one, by the partition's name.
        default_partition: The partition of who asks for none; empty where there is none.
        unknown: Why nothing is known, in words; empty where something is.
    """

    known: Mapping[str, Qos] = field(default_factory=dict)
    defaults: tuple[tuple[str, str, str], ...] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)
    default_partition: str = ""
    unknown: str = ""

    def find_max_wall_s(
        self, qos: str | None, account: str | None, partition: str | None
    ) -> int | None:
        """How long a job may run; None where there is no limit, or it is not known.

        A partition's QoS counts before the job's, unless that says otherwise (Slurm, "Resource
        Limits"). Of several partitions, or several QoS, the shortest counts.

        Args:
            qos: `--qos`; None for the user's default.
            account: `--account`; None for the user's default.
            partition: `--partition`; None for the cluster's default.
        """
        names = partition or self.default_partition
        limits = [
            self._find_in(name, chosen)
            for name in names.split(",")
            for chosen in self._choose(qos, account, name)
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def _find_in(self, partition: str, qos: str) -> int | None:
        own = self.known.get(qos, Qos())
        theirs = self.known.get(self.partitions.get(partition, ""), Qos())
        first, second = (own, theirs) if own.over_partition else (theirs, own)
        return second.max_wall_s if first.max_wall_s is None else first.max_wall_s

    def _choose(self, qos: str | None, account: str | None, partition: str) -> list[str]:
        """The QoS that a job gets; nothing that tells of none where it cannot be told apart."""
        if qos:
            return qos.split(",")
        rows = [row for row in self.defaults if account in (None, row[0])]
        rows = [row for row in rows if row[1] == partition] or [row for row in rows if not row[1]]
        found = {row[2] or USUAL for row in rows} or {USUAL}
        return sorted(found) if len(found) == 1 else [""]
