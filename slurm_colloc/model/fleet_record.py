"""What a pack tells the site when it has ended: a small JSON object, which any user may forge.

So every field has a kind and bounds, and nothing of a user's is in it: no names, arguments, paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from slurm_colloc.model.late_definitions import asdict, dataclass, late_pattern

SCHEMA = 1
KIND = "slurm_colloc.fleet"
BYTES_MOST = 32 << 10
RATES_MOST = 64

_JOB = late_pattern(r"(?a)[0-9]{1,10}(?:_[0-9]{1,10})?")
_CLUSTER = late_pattern(r"(?a)[A-Za-z0-9_.-]{0,64}")
_NODE = late_pattern(r"(?a)[A-Za-z0-9_.-]{1,64}")
_MODEL = late_pattern(r"(?a)[A-Za-z0-9 ()/_.+-]{1,64}")
_UUID = late_pattern(r"(?a)(?:GPU|MIG)-[0-9a-fA-F/-]{4,80}")
_SIGNATURE = late_pattern(r"(?a)[0-9a-f]{32}")
_MODES = frozenset({"exclusive", "timeslice", "mps", "mig"})
_MOMENT_MOST = 1e11
_GPUS_MOST = 64
_MEMBERS_MOST = 100_000
_WATT_MOST = 3000.0
_GAIN_MOST = 256.0


@dataclass(frozen=True)
class FleetRecord:
    """A pack that has ended; None stands for what is not known.

    Attributes:
        job_id: What Slurm calls its job, `4711` or `4711_2`.
        cluster: Whose job id that is; empty where not known.
        attempt: Its attempt; a later one counts.
        node: Where it ran.
        gpu_model: Model of its GPU.
        gpu_uuid: Its GPU.
        gpu_memory_mb: That GPU's memory.
        mode: How its members shared the GPU.
        gpus: How many GPUs it had; 0 for a pack without one.
        gpu_set: Which of the GPU sets of its job it filled, from 0.
        started_at: Its first start, in seconds since the epoch.
        ended_at: Its last end.
        members: How many ran.
        failed: How many of these failed.
        wasted_share: Their part of the time of all.
        saved_s: GPU time that sharing saved.
        slowdown: Mean over the members of which it is known.
        slowdown_of: How many these are.
        energy_j: Of its GPU.
        saved_kwh: Energy that sharing saved.
        sm_active: Mean activity of the SMs, 0 to 1.
        utilization: Mean of NVML's, 0 to 1.
        gpu_memory_used_mb: The most that was used of the GPU's memory.
        cpus: CPUs of its members together.
        cpu_s: CPU time of its members.
        host_memory_mb: Sum of their peaks.
        rates: Of jobs that were measured alone, by signature: steps per second.
        throttled_share: For which part of its time heat or the power brake held the GPU's clocks
            down.
    """

    job_id: str
    cluster: str
    attempt: int
    node: str
    gpu_model: str | None
    gpu_uuid: str | None
    gpu_memory_mb: float | None
    mode: str
    gpus: int
    started_at: float
    ended_at: float
    members: int
    failed: int
    wasted_share: float
    saved_s: float | None
    slowdown: float | None
    slowdown_of: int
    energy_j: float | None
    saved_kwh: float | None
    sm_active: float | None
    utilization: float | None
    gpu_memory_used_mb: float | None
    cpus: int | None
    cpu_s: float | None
    host_memory_mb: float | None
    rates: tuple[tuple[str, float], ...] = ()
    gpu_set: int = 0
    throttled_share: float | None = None

    @property
    def has_shared(self) -> bool:
        """Its members shared a GPU: else there was nothing to save."""
        return self.mode != "exclusive"

    @property
    def gpu_s(self) -> float:
        """GPU time, once for each of its GPUs."""
        return (self.ended_at - self.started_at) * self.gpus


@dataclass(kw_only=True)
class SharingSums:
    """Sums of packs, or of parts of them; what is not known of a pack is left out of that sum.

    Attributes:
        packs: How many.
        members: Members that ran.
        gpu_s: GPU time that was held.
        shared: Packs whose members shared a GPU; the others have saved nothing.
        saved_known_s: GPU time that sharing saved, where it is known.
        saved_of: Packs that shared of which it is known.
        wasted_s: GPU time of members that failed.
        energy_known_j: Energy of the GPUs, where it is known.
        energy_of: Packs of which it is known.
        saved_known_kwh: Energy that sharing saved, where it is known.
        saved_kwh_of: Packs that shared of which it is known.
        slowdowns: The sum of the slowdowns that are known.
        slowdowns_of: Members of which it is known.
        busy_s: GPU time times the activity of SMs.
        busy_of_s: GPU time of which that is known.
    """

    packs: int = 0
    members: int = 0
    gpu_s: float = 0.0
    shared: int = 0
    saved_known_s: float = 0.0
    saved_of: int = 0
    wasted_s: float = 0.0
    energy_known_j: float = 0.0
    energy_of: int = 0
    saved_known_kwh: float = 0.0
    saved_kwh_of: int = 0
    slowdowns: float = 0.0
    slowdowns_of: int = 0
    busy_s: float = 0.0
    busy_of_s: float = 0.0

    def add_use(self, gpu_s: float, sm_active: float | None, energy_j: float | None) -> None:
        """Add what a pack, or a part of it, held and used."""
        self.packs += 1
        self.gpu_s += gpu_s
        if sm_active is not None:
            self.busy_s += gpu_s * sm_active
            self.busy_of_s += gpu_s
        if energy_j is not None:
            self.energy_known_j += energy_j
            self.energy_of += 1

    def add_saving(self, saved_s: float | None, saved_kwh: float | None, *, shared: bool) -> None:
        """Add what sharing saved it."""
        self.shared += shared
        if saved_s is not None:
            self.saved_known_s += saved_s
            self.saved_of += shared
        if saved_kwh is not None:
            self.saved_known_kwh += saved_kwh
            self.saved_kwh_of += shared

    @property
    def gpu_hours(self) -> float:
        """GPU time in hours."""
        return self.gpu_s / 3600

    @property
    def wasted_hours(self) -> float:
        """GPU time of members that failed, in hours."""
        return self.wasted_s / 3600

    @property
    def saved_s(self) -> float | None:
        """GPU time saved; None where packs shared and it is known of none."""
        return self.saved_known_s if self.saved_of or not self.shared else None

    @property
    def saved_hours(self) -> float | None:
        """The same in hours."""
        return None if self.saved_s is None else self.saved_s / 3600

    @property
    def saved_kwh(self) -> float | None:
        """Energy saved; None where packs shared and it is known of none."""
        return self.saved_known_kwh if self.saved_kwh_of or not self.shared else None

    @property
    def energy_j(self) -> float | None:
        """Energy of the GPUs; None where it is known of none."""
        return self.energy_known_j if self.energy_of else None

    @property
    def energy_kwh(self) -> float | None:
        """The same in kWh."""
        return None if self.energy_j is None else self.energy_j / 3.6e6

    @property
    def slowdown(self) -> float | None:
        """The mean slowdown of members; None where it is known of none."""
        return self.slowdowns / self.slowdowns_of if self.slowdowns_of else None

    @property
    def sm_active(self) -> float | None:
        """Mean activity of SMs, by GPU time; None where it is known of none."""
        return self.busy_s / self.busy_of_s if self.busy_of_s > 0 else None


def build_mapping(record: FleetRecord) -> dict[str, Any]:
    """Its JSON form."""
    return {"schema": SCHEMA, "kind": KIND, **asdict(record)}


def parse_fleet_record(value: Any) -> FleetRecord:
    """Read what claims to be one; what is not known is passed over.

    Raises:
        ValueError: It is none, or a value is out of bounds; the text says which field.
    """
    if not isinstance(value, Mapping) or value.get("kind") != KIND:
        raise ValueError("it is not a report of a pack")
    if value.get("schema") != SCHEMA:
        raise ValueError("its schema is not 1")
    read = _Reader(value)
    started, ended = read.number("started_at", _MOMENT_MOST), read.number("ended_at", _MOMENT_MOST)
    gpus = read.whole("gpus", _GPUS_MOST)
    length_s = ended - started
    if length_s < 0:
        raise ValueError("ended_at is before started_at")
    members, failed = read.whole("members", _MEMBERS_MOST), read.whole("failed", _MEMBERS_MOST)
    if failed > members:
        raise ValueError("failed is more than members")
    slowdown = read.number_or_none("slowdown", 1e4)
    slowdown_of = read.whole("slowdown_of", members)
    if (slowdown is None) != (slowdown_of == 0):
        raise ValueError("slowdown_of is odd")
    gain_s = length_s * gpus * _GAIN_MOST
    energy_j = length_s * gpus * _WATT_MOST + _WATT_MOST
    return FleetRecord(
        job_id=read.text("job_id", _JOB),
        cluster=read.text("cluster", _CLUSTER),
        attempt=read.whole("attempt", 1_000_000),
        node=read.text("node", _NODE),
        gpu_model=read.text_or_none("gpu_model", _MODEL),
        gpu_uuid=read.text_or_none("gpu_uuid", _UUID),
        gpu_memory_mb=read.number_or_none("gpu_memory_mb", 1e7),
        mode=read.word("mode", _MODES),
        gpus=gpus,
        started_at=started,
        ended_at=ended,
        members=members,
        failed=failed,
        wasted_share=read.number("wasted_share", 1.0),
        # Sharing may cost time, too.
        saved_s=read.number_or_none("saved_s", gain_s, -gain_s),
        slowdown=slowdown,
        slowdown_of=slowdown_of,
        energy_j=read.number_or_none("energy_j", energy_j),
        saved_kwh=read.number_or_none(
            "saved_kwh", energy_j * _GAIN_MOST / 3.6e6, -energy_j * _GAIN_MOST / 3.6e6
        ),
        sm_active=read.number_or_none("sm_active", 1.0),
        utilization=read.number_or_none("utilization", 1.0),
        gpu_memory_used_mb=read.number_or_none("gpu_memory_used_mb", 1e7),
        cpus=None if value.get("cpus") is None else read.whole("cpus", 100_000),
        cpu_s=read.number_or_none("cpu_s", 1e12),
        host_memory_mb=read.number_or_none("host_memory_mb", 1e9),
        rates=read.rates("rates"),
        gpu_set=read.whole("gpu_set", _GPUS_MOST - 1) if "gpu_set" in value else 0,
        throttled_share=read.number_or_none("throttled_share", 1.0),
    )


class _Reader:
    """Reads fields of an object that may hold anything."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        found = self._value.get(name)
        if not isinstance(found, str) or not pattern.fullmatch(found):
            raise ValueError(f"{name} is odd")
        return found

    def text_or_none(self, name: str, pattern: re.Pattern[str]) -> str | None:
        return None if self._value.get(name) is None else self.text(name, pattern)

    def word(self, name: str, words: frozenset[str]) -> str:
        found = self._value.get(name)
        if not isinstance(found, str) or found not in words:
            raise ValueError(f"{name} is odd")
        return found

    def number(self, name: str, most: float, least: float = 0.0) -> float:
        return _check(name, self._value.get(name), most, least)

    def number_or_none(self, name: str, most: float, least: float = 0.0) -> float | None:
        return None if self._value.get(name) is None else self.number(name, most, least)

    def whole(self, name: str, most: int) -> int:
        found = self._value.get(name)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
            raise ValueError(f"{name} is odd")
        return found

    def rates(self, name: str) -> tuple[tuple[str, float], ...]:
        found = self._value.get(name, [])
        if not isinstance(found, list) or len(found) > RATES_MOST:
            raise ValueError(f"{name} is odd")
        rates = []
        for pair in found:
            is_pair = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
            if not is_pair or not _SIGNATURE.fullmatch(pair[0]):
                raise ValueError(f"{name} is odd")
            rates.append((pair[0], _check(name, pair[1], 1e9, 1e-9)))
        return tuple(rates)


def _check(name: str, value: Any, most: float, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number")
    if isinstance(value, int) and abs(value) > 1 << 60:
        raise ValueError(f"{name} is out of bounds")
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name} is out of bounds")
    return float(value)
