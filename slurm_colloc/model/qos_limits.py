"""How long jobs may run, and how many at once, by their quality of service (QoS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

USUAL = "normal"
"""The QoS that Slurm makes itself, and gives to users who have no default of their own."""


@dataclass(frozen=True)
class Qos:
    """A quality of service.

    Attributes:
        max_wall_s: Its MaxWall in seconds; None for no limit.
        over_partition: It counts before the partition's own QoS (OverPartQOS).
        over_max_time: Its jobs may run for longer than MaxTime of their partition
            (PartitionTimeLimit).
        jobs_at_once: Jobs of a user that may run, or be submitted, at the same time; None for no
            limit (MaxJobsPU, MaxSubmitPU).
        gpus_at_once: GPUs that a user may have at the same time (MaxTRESPU); None for no limit.
        gpus_per_job: GPUs of a job (MaxTRES); None for no limit.
    """

    max_wall_s: int | None = None
    over_partition: bool = False
    over_max_time: bool = False
    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


@dataclass(frozen=True)
class Association:
    """What a user is by one of their accounts, with what it takes over from that account.

    Attributes:
        account: The account.
        partition: The partition to which it is confined; empty for none.
        is_default: The account is that of jobs that ask for none.
        qos: The QoS of jobs that ask for none.
        max_wall_s: Its MaxWall in seconds; None for no limit.
        jobs_at_once: Its MaxJobs or MaxSubmit; as in Qos.
        gpus_at_once: Its GrpTRES; as in Qos.
        gpus_per_job: Its MaxTRES; as in Qos.
    """

    account: str
    partition: str = ""
    is_default: bool = False
    qos: str = USUAL
    max_wall_s: int | None = None
    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


@dataclass(frozen=True)
class UserLimits:
    """How much a user may have at the same time; None for no limit, or where it is not known.

    Attributes:
        jobs_at_once: Slurm jobs.
        gpus_at_once: GPUs.
        gpus_per_job: GPUs of one Slurm job.
    """

    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


NO_LIMITS = UserLimits()
"""Nothing is limited."""


@dataclass(frozen=True)
class QosTable:
    """What Slurm tells of its qualities of service.

    Attributes:
        known: Each by its name, which Slurm keeps in small letters.
        associations: The user's own.
        partitions: QoS of partitions that have one, by the partition's name.
        default_partition: The partition of who asks for none; empty where there is none.
        unknown: Why nothing is known, in words; empty where something is.
    """

    known: Mapping[str, Qos] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)
    default_partition: str = ""
    unknown: str = ""

    def find_max_wall_s(
        self, qos: str | None, account: str | None, partition: str | None
    ) -> int | None:
        """How long a job may run; None where there is no limit, or it is not known.

        A partition's QoS counts before the job's, unless that says otherwise, and the association
        after both (Slurm, "Resource Limits"). Of several partitions, or several QoS, the shortest
        counts.

        Args:
            qos: `--qos`; None for the user's default.
            account: `--account`; None for the user's default.
            partition: `--partition`; None for the cluster's default.
        """
        return self._find_least("max_wall_s", qos, account, partition)

    def find_user_limits(
        self, qos: str | None, account: str | None, partition: str | None
    ) -> UserLimits:
        """How much the user may have at the same time; as `find_max_wall_s`."""
        names = [field.name for field in fields(UserLimits)]
        return UserLimits(*(self._find_least(n, qos, account, partition) for n in names))

    def _find_least(
        self, name: str, qos: str | None, account: str | None, partition: str | None
    ) -> int | None:
        limits = [
            self._find_in(name, place, chosen, rows)
            for place, rows in self._list_places(account, partition)
            for chosen in _choose(qos, rows)
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def lifts_max_time(self, qos: str | None, account: str | None, partition: str | None) -> bool:
        """Whether a job may run for longer than MaxTime of its partition; as `find_max_wall_s`."""
        return all(
            self.known.get(chosen, Qos()).over_max_time
            for _, rows in self._list_places(account, partition)
            for chosen in _choose(qos, rows)
        )

    def _find_in(
        self, name: str, partition: str, qos: str, rows: Sequence[Association]
    ) -> int | None:
        own = self.known.get(qos, Qos())
        theirs = self.known.get(self.partitions.get(partition, "").lower(), Qos())
        first, second = (own, theirs) if own.over_partition else (theirs, own)
        of_rows = {getattr(row, name) for row in rows}
        last = of_rows.pop() if len(of_rows) == 1 else None
        limits = (getattr(first, name), getattr(second, name), last)
        return next((limit for limit in limits if limit is not None), None)

    def _list_places(
        self, account: str | None, partition: str | None
    ) -> list[tuple[str, list[Association]]]:
        """Each partition, and what the user is in it: one row, or several where it is unknown."""
        rows = list(self.associations)
        if account is not None:
            rows = [row for row in rows if row.account == account.lower()]
        elif any(row.is_default for row in rows):
            rows = [row for row in rows if row.is_default]
        names = (partition or self.default_partition).split(",")
        return [
            (
                name,
                [row for row in rows if row.partition == name]
                or [row for row in rows if not row.partition],
            )
            for name in names
        ]


def _choose(qos: str | None, rows: Sequence[Association]) -> list[str]:
    """The QoS that a job gets; nothing that tells of none where it cannot be told apart."""
    if qos:
        return qos.lower().split(",")
    found = {row.qos for row in rows} or {USUAL}
    return sorted(found) if len(found) == 1 else [""]
