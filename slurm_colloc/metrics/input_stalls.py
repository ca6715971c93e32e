"""What holds a training up, from the time of its batches in the phases of `csub probe --stalls`.

Each phase has all that the one before has, and one thing more: the GPU (and the program's own
code); exchange between the GPUs of a job; copies to the GPU; decoding, for samples whose files are
in the page cache; the disk. So the differences are what each of them costs (DS-Analyzer: Mohan,
Phanishayee, Raniwala and Chidambaram, "Analyzing and Mitigating Data Stalls in DNN Training", VLDB
2021; there the copies are not apart. Exchange: Sharma and others, "Stash", ICDCS 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from slurm_colloc.model.late_definitions import dataclass

PHASES = ("apart", "resident", "replayed", "cached", "ordinary")
"""As instrument.torch_stalls names them, from the least work to the most."""
SPARSER = 4
"""Batches for one exchange that are advised."""
COLD_LEAST = 0.05
"""Of the bytes that files were asked for; less from disk, and the pages were cached."""
ASKED_LEAST = 4096
CORES_MOST = 64
SHARE_LEAST = 0.05
"""What holds a training up for less is not spoken of."""


@dataclass(frozen=True)
class InputStalls:
    """What a training's time goes to, as shares that sum to 1.

    Attributes:
        gpu: Its GPU and its own code; also exchange where that is not known.
        exchange: What DistributedDataParallel sends between the GPUs, and waiting for the slowest;
            None where it is not known, or there is one process.
        exchange_untold: Why it is not known; empty where it is, or there is one process.
        copies: Copies of its batches to the GPU.
        decoding: Loading samples whose files are cached.
        disk: Reading files.
        is_cold: Files were read from disk; otherwise what the disk costs is not known.
        reads_files: Its loader read files at all.
        processes: How many train together.
        workers: Workers of a process's DataLoader.
        cpus: Cores that a process has.
        turns: How often each phase was measured.
    """

    gpu: float
    exchange: float | None
    exchange_untold: str
    copies: float
    decoding: float
    disk: float
    is_cold: bool
    reads_files: bool
    processes: int
    workers: int
    cpus: int
    turns: int


@dataclass(frozen=True)
class CoresAdvice:
    """How many cores would decode fast enough.

    Attributes:
        cores: As many cores, and workers of the DataLoader, for each process.
        now: How many decode now.
        speedup: How many times as fast it would be.
    """

    cores: int
    now: int
    speedup: float


def compute_stalls(result: Mapping[str, Any]) -> InputStalls | None:
    """The shares of a result; None where it has no turn with all phases, or is malformed."""
    try:
        timed = {name: [(int(n), float(s)) for n, s in result["timed"][name]] for name in PHASES}
        workers, cpus = int(result["workers"]), int(result["cpus"])
        asked, read = int(result["asked_bytes"]), int(result["disk_bytes"])
        processes, untold = int(result["processes"]), str(result["exchange_untold"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    is_told = bool(timed["apart"])
    names = PHASES if is_told else PHASES[1:]
    turns = min(len(timed[name]) for name in names)
    values = [v for name in names for v in timed[name]]
    if not turns or not all(n > 0 and math.isfinite(s) and s > 0 for n, s in values):
        return None
    means = make_rising([median(s / n for n, s in timed[name]) for name in names])
    resident, replayed, cached, ordinary = means[-4:]
    return InputStalls(
        gpu=means[0] / ordinary,
        exchange=(resident - means[0]) / ordinary if is_told else None,
        exchange_untold=untold,
        copies=(replayed - resident) / ordinary,
        decoding=(cached - replayed) / ordinary,
        disk=(ordinary - cached) / ordinary,
        is_cold=read >= max(ASKED_LEAST, COLD_LEAST * asked),
        reads_files=asked >= ASKED_LEAST,
        processes=processes,
        workers=workers,
        cpus=cpus,
        turns=turns,
    )


def make_rising(values: Sequence[float]) -> list[float]:
    """The rising values nearest to these: noise may make a phase with more work the faster one."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean = (before * many + mean * count) / (many + count)
            count += many
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def advise_cores(stalls: InputStalls) -> CoresAdvice | None:
    """How many cores would decode as fast as the GPU takes batches; None where that is no matter.

    Decoding is assumed to spread over cores. Workers decode while the GPU computes; without them
    one core does both by turns.
    """
    if stalls.decoding < SHARE_LEAST:
        return None
    # In shares of a batch's time.
    busy = stalls.gpu + (stalls.exchange or 0.0) + stalls.copies
    now = max(1, min(stalls.workers, stalls.cpus))
    decodes = (stalls.decoding + busy) * now if stalls.workers else stalls.decoding
    cores = min(CORES_MOST, max(math.ceil(decodes / busy - 1e-6), now + (stalls.workers > 0)))
    left = max(busy, decodes / cores) + stalls.disk
    return CoresAdvice(cores, now, 1.0 / left)
