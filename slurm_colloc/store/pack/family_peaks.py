"""peaks.json: what members of a GPU set were seen to take of a GPU's memory, for the other sets.

The runner of the set writes it, and those of the other sets of its Slurm job read it: the first of
a kind does not have to be waited for in each of them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record

NAME = "peaks.json"


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
