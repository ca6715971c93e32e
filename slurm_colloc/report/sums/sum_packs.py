"""GPU hours, energy, slowdown and waste over many packs, by script, user, GPU or mode; pure."""

from __future__ import annotations

import enum
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_colloc.report.sums.pack_entry import PackEntry, ScriptPart


class Grouping(enum.StrEnum):
    """What a row of sums is of."""

    SCRIPT = "script"
    USER = "user"
    GPU = "gpu"
    MODE = "mode"


UNKNOWN_GPU = "unknown"


@dataclass
class PackSums:
    """Sums of some packs, or of parts of them.

    A part of a pack has the share of its GPU time, of what was saved and of its energy that its
    members had of the time of all members there.

    Attributes:
        name: What they are of.
        packs: Packs of which there is a part in it.
        members: Members that ran.
        gpu_hours: For which packs held GPUs.
        shared: Packs whose members shared their GPU; the others have saved nothing.
        saved_hours: GPU hours that sharing saved, of packs of which that is known.
        saved_of: Packs that shared of which it is known.
        energy_kwh: Energy of the GPUs, of packs of which it is known.
        energy_of: Packs of which it is known.
        saved_kwh: Energy that sharing saved, of packs of which that is known.
        saved_kwh_of: Packs that shared of which it is known.
        wasted_hours: GPU hours of members that failed.
        slowdowns: The sum of the slowdowns that are known.
        slowdowns_of: Members of which it is known.
        busy_hours: GPU hours times the activity of the SMs in them.
        busy_of_hours: GPU hours of which the activity is known.
    """

    name: str
    packs: int = 0
    members: int = 0
    gpu_hours: float = 0.0
    shared: int = 0
    saved_hours: float = 0.0
    saved_of: int = 0
    energy_kwh: float = 0.0
    energy_of: int = 0
    saved_kwh: float = 0.0
    saved_kwh_of: int = 0
    wasted_hours: float = 0.0
    slowdowns: float = 0.0
    slowdowns_of: int = 0
    busy_hours: float = 0.0
    busy_of_hours: float = field(default=0.0)

    def add(self, entry: PackEntry, parts: Sequence[ScriptPart]) -> None:
        """Add some of a pack's parts."""
        whole_s = sum(part.present_s for part in entry.parts)
        own_s = sum(part.present_s for part in parts)
        share = own_s / whole_s if whole_s > 0 else len(parts) / len(entry.parts)
        hours = entry.gpu_s / 3600 * share
        self.packs += 1
        self.members += sum(part.members for part in parts)
        self.gpu_hours += hours
        if own_s > 0:
            self.wasted_hours += hours * sum(part.wasted_s for part in parts) / own_s
        self.shared += entry.shared
        if entry.saved_s is not None:
            self.saved_hours += entry.saved_s / 3600 * share
            self.saved_of += entry.shared
        if entry.energy_j is not None:
            self.energy_kwh += entry.energy_j / 3.6e6 * share
            self.energy_of += 1
        if entry.saved_kwh is not None:
            self.saved_kwh += entry.saved_kwh * share
            self.saved_kwh_of += entry.shared
        if entry.sm_active is not None:
            self.busy_hours += hours * entry.sm_active
            self.busy_of_hours += hours
        self.slowdowns += sum(part.slowdowns for part in parts)
        self.slowdowns_of += sum(part.known for part in parts)

    @property
    def known_saved_hours(self) -> float | None:
        """None where packs have shared, and what that saved is known of none of them."""
        return self.saved_hours if self.saved_of or not self.shared else None

    @property
    def known_saved_kwh(self) -> float | None:
        """Likewise."""
        return self.saved_kwh if self.saved_kwh_of or not self.shared else None

    @property
    def known_energy_kwh(self) -> float | None:
        """None where it is known of no pack."""
        return self.energy_kwh if self.energy_of else None

    @property
    def mean_slowdown(self) -> float | None:
        """Over the members of which it is known."""
        return self.slowdowns / self.slowdowns_of if self.slowdowns_of else None

    @property
    def sm_active(self) -> float | None:
        """Mean activity of the SMs, over the GPU hours of which it is known."""
        return self.busy_hours / self.busy_of_hours if self.busy_of_hours > 0 else None


def sum_packs(
    entries: Iterable[tuple[str, PackEntry]], grouping: Grouping
) -> tuple[list[PackSums], PackSums]:
    """Sums by group, the one with most GPU hours first, and of all.

    Args:
        entries: Packs, each with the name of its user.
        grouping: What a row is of.
    """
    groups: dict[str, PackSums] = {}
    total = PackSums("all")
    for user, entry in entries:
        if not entry.parts:
            continue
        total.add(entry, entry.parts)
        for name, parts in _divide(user, entry, grouping):
            groups.setdefault(name, PackSums(name)).add(entry, parts)
    found = sorted(groups.values(), key=lambda sums: (-sums.gpu_hours, sums.name))
    if grouping is Grouping.SCRIPT:
        _shorten(found)
    return found, total


def _divide(
    user: str, entry: PackEntry, grouping: Grouping
) -> list[tuple[str, tuple[ScriptPart, ...]]]:
    if grouping is Grouping.SCRIPT:
        return [(part.script, (part,)) for part in entry.parts]
    names = {
        Grouping.USER: user,
        Grouping.GPU: entry.gpu or UNKNOWN_GPU,
        Grouping.MODE: entry.mode,
    }
    return [(names[grouping], entry.parts)]


def _shorten(found: Sequence[PackSums]) -> None:
    """Call scripts by their file's name, where no other has the same."""
    counts = Counter(posixpath.basename(sums.name) for sums in found)
    for sums in found:
        base = posixpath.basename(sums.name)
        if counts[base] == 1:
            sums.name = base
