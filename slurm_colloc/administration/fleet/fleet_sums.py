"""Sums of the site's packs by day, account and partition, and GPUs that are slower; pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.administration.fleet.fleet_days import FleetPack


@dataclass
class FleetRow:
    """Sums of packs; what is not known of a pack is left out of that sum, None if of none.

    Attributes:
        day: On which they ended; empty for all days.
        account: Their account.
        partition: Their partition.
        packs: How many.
        members: Members that ran.
        failed: Members that failed.
        gpu_s: GPU time.
        shared: Packs whose members shared a GPU.
        saved_known_s: GPU time that sharing saved, where it is known.
        saved_of: Packs that shared of which it is known.
        wasted_s: GPU time of members that failed.
        energy_j: Of their GPUs.
        saved_known_kwh: Energy that sharing saved, where it is known.
        saved_kwh_of: Packs that shared of which it is known.
        slowdowns: The sum of the slowdowns that are known.
        slowdowns_of: Members of which it is known.
        busy_s: GPU time times the activity of SMs.
        busy_of_s: GPU time of which that is known.
    """

    day: str
    account: str
    partition: str
    packs: int = 0
    members: int = 0
    failed: int = 0
    gpu_s: float = 0.0
    shared: int = 0
    saved_known_s: float = 0.0
    saved_of: int = 0
    wasted_s: float = 0.0
    energy_j: float | None = None
    saved_known_kwh: float = 0.0
    saved_kwh_of: int = 0
    slowdowns: float = 0.0
    slowdowns_of: int = 0
    busy_s: float = 0.0
    busy_of_s: float = 0.0

    def add(self, pack: FleetPack) -> None:
        """Add a pack."""
        record = pack.record
        self.packs += 1
        self.members += record.members
        self.failed += record.failed
        self.gpu_s += record.gpu_s
        self.wasted_s += record.gpu_s * record.wasted_share
        self.energy_j = _add_known(self.energy_j, record.energy_j)
        if record.has_shared:
            self.shared += 1
            self.saved_of += record.saved_s is not None
            self.saved_known_s += record.saved_s or 0.0
            self.saved_kwh_of += record.saved_kwh is not None
            self.saved_known_kwh += record.saved_kwh or 0.0
        if record.slowdown is not None:
            self.slowdowns += record.slowdown * record.slowdown_of
            self.slowdowns_of += record.slowdown_of
        if record.sm_active is not None:
            self.busy_s += record.gpu_s * record.sm_active
            self.busy_of_s += record.gpu_s

    @property
    def saved_s(self) -> float | None:
        """GPU time that sharing saved; None where packs have shared and it is known of none."""
        return self.saved_known_s if self.saved_of or not self.shared else None

    @property
    def saved_kwh(self) -> float | None:
        """Energy that sharing saved; likewise."""
        return self.saved_known_kwh if self.saved_kwh_of or not self.shared else None

    @property
    def slowdown(self) -> float | None:
        """Mean over the members of which it is known."""
        return self.slowdowns / self.slowdowns_of if self.slowdowns_of else None

    @property
    def sm_active(self) -> float | None:
        """Mean over the GPU time of which it is known."""
        return self.busy_s / self.busy_of_s if self.busy_of_s > 0 else None


def _add_known(total: float | None, value: float | None) -> float | None:
    return total if value is None else (total or 0.0) + value


def sum_fleet(packs: Iterable[FleetPack], *, by_day: bool = True) -> list[FleetRow]:
    """A row for each day, account and partition; or, without days, for account and partition."""
    rows: dict[tuple[str, str, str], FleetRow] = {}
    for pack in packs:
        key = (pack.day if by_day else "", pack.account, pack.partition)
        rows.setdefault(key, FleetRow(*key)).add(pack)
    return [rows[key] for key in sorted(rows)]


SLOW = 0.9
"""A GPU below it is slow: such of one model differ by some percent."""
JOBS_LEAST = 3
USERS_LEAST = 2


@dataclass(frozen=True)
class GpuPace:
    """How fast a GPU is against others of its model, by jobs that ran alone on several.

    Attributes:
        uuid: The GPU.
        node: Where it was seen last.
        model: Its model.
        rate: Median over users of the median over their jobs: a job's rate on it over the median
            of that job on all GPUs of the model.
        jobs: How many jobs tell.
        users: Of how many users.
        slow_for: For how many of these users it is slow.
    """

    uuid: str
    node: str
    model: str
    rate: float
    jobs: int
    users: int
    slow_for: int

    @property
    def is_slow(self) -> bool:
        """It is slow, and neither one job nor one user alone says so."""
        return self.rate < SLOW and self.jobs >= JOBS_LEAST and self.slow_for >= USERS_LEAST


def compare_gpus(packs: Sequence[FleetPack]) -> list[GpuPace]:
    """GPUs by their pace, the slowest first.

    A job counts where it was measured alone on at least two GPUs of one model, each user's by
    itself, and each user has one vote. No user can make a GPU look slow alone: see
    `GpuPace.is_slow`.
    """
    rates: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    nodes: dict[str, tuple[float, str]] = {}
    for pack in packs:
        record = pack.record
        if record.gpu_uuid is None or record.gpu_model is None:
            continue
        seen = (record.ended_at, record.node)
        nodes[record.gpu_uuid] = max(nodes.get(record.gpu_uuid, seen), seen)
        for signature, rate in record.rates:
            rates[record.gpu_model, pack.user, signature][record.gpu_uuid].append(rate)
    paces: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (model, user, _), by_gpu in rates.items():
        if len(by_gpu) < 2:
            continue
        medians = {uuid: statistics.median(found) for uuid, found in by_gpu.items()}
        usual = statistics.median(medians.values())
        for uuid, own in medians.items():
            paces[model, uuid][user].append(own / usual)
    found = [
        _judge_pace(uuid, nodes[uuid][1], model, by_user)
        for (model, uuid), by_user in paces.items()
    ]
    return sorted(found, key=lambda pace: (pace.rate, pace.uuid))


def _judge_pace(
    uuid: str, node: str, model: str, by_user: Mapping[str, Sequence[float]]
) -> GpuPace:
    votes = [statistics.median(values) for values in by_user.values()]
    return GpuPace(
        uuid, node, model, statistics.median(votes), sum(map(len, by_user.values())), len(votes),
        sum(vote < SLOW for vote in votes),
    )  # fmt: skip
