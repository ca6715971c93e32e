"""What the GPU sets of one Slurm job tell each other of their members' GPU memory: peaks.json.

The runner of a set writes it, and those of the others read it: the first of a kind does not have to
be waited for in each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record

NAME = "peaks.json"
LOOK_EVERY_S = 1.0


@dataclasses.dataclass(frozen=True)
class FamilyPeaks:
    """What was seen.

    Attributes:
        restarts: Slurm's restart count of the job at that time.
        gpu_memory_mb: Memory of the set's GPUs (MiB); some programs take a part of it. None where
            it is not known.
        peaks_mb: By family what one of it took at most, with a margin (MiB).
    """

    restarts: int
    gpu_memory_mb: int | None
    peaks_mb: tuple[tuple[str, int], ...]


def write_peaks(pack: Path, peaks: FamilyPeaks) -> None:
    """Write a pack's peaks.json.

    Raises:
        StateError: It cannot be written.
    """
    write_json(pack / NAME, dataclasses.asdict(peaks))


def read_peaks(pack: Path) -> FamilyPeaks | None:
    """Read a pack's peaks.json; None where none was written.

    Raises:
        StateError: It is damaged.
    """
    return read_record(pack / NAME, FamilyPeaks)


class JobPeaks:
    """Tells the other sets, and asks them.

    Args:
        pack: The pack's directory.
        others: Those of the other sets.
        restarts: How often Slurm has restarted the job.
        find_gpu_memory_mb: Memory of a GPU of this set; None where it is not known.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        pack: Path,
        others: Sequence[Path],
        restarts: int,
        find_gpu_memory_mb: Callable[[], int | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pack = pack
        self._others = others
        self._restarts = restarts
        self._find_gpu_memory_mb = find_gpu_memory_mb
        self._clock = clock
        self._told: Mapping[str, int] = {}
        self._found: dict[str, int] = {}
        self._looked_at = float("-inf")

    @property
    def has_others(self) -> bool:
        """There are other sets to tell."""
        return bool(self._others)

    def tell(self, peaks_mb: Mapping[str, int]) -> None:
        """Say what was seen here; written only where it is more than before.

        Args:
            peaks_mb: By family what one of it took at most, with a margin.
        """
        if all(mb <= self._told.get(family, 0) for family, mb in peaks_mb.items()):
            return
        self._told = {**self._told, **peaks_mb}
        value = FamilyPeaks(
            self._restarts, self._find_gpu_memory_mb(), tuple(sorted(self._told.items()))
        )
        # Without it each set sees for itself.
        with contextlib.suppress(StateError):
            write_peaks(self._pack, value)

    def find_mb(self, family: str) -> int | None:
        """What one of a family took at most in another set; None where that is not known."""
        now = self._clock()
        if family not in self._found and now >= self._looked_at + LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        return self._found.get(family)

    def _look(self) -> None:
        own_mb = self._find_gpu_memory_mb()
        for path in self._others:
            with contextlib.suppress(StateError):
                found = read_peaks(path)
                # Some programs take a part of all that a GPU has.
                if found is None or (found.restarts, found.gpu_memory_mb) != (
                    self._restarts, own_mb
                ):  # fmt: skip
                    continue
                for family, mb in found.peaks_mb:
                    if mb > 0:
                        self._found[family] = max(mb, self._found.get(family, 0))
