"""What holds a training up, from the time of its batches in the phases of `csub probe --stalls`.

Each phase has all that the one before has, and one thing more: the GPU (and the program's own
code); copies to it; decoding, for samples whose files are in the page cache; the disk. So the
differences are what each of them costs (DS-Analyzer: Mohan, Phanishayee, Raniwala and Chidambaram,
"Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021; there the copies are not apart).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from slurm_colloc.model.late_definitions import dataclass

PHASES = ("resident", "replayed", "cached", "ordinary")
"""As instrument.torch_stalls names them, from the least work to the most."""
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
        gpu: Its GPU and its own code.
        copies: Copies of its batches to the GPU.
        decoding: Loading samples whose files are cached.
        disk: Reading files.
        is_cold: Files were read from disk; otherwise what the disk costs is not known.
        reads_files: Its loader read files at all.
        batch_s: Seconds per batch, as it trains.
        workers: Workers of its DataLoader.
        cpus: Cores that it has.
        turns: How often each phase was measured.
    """

    gpu: float
    copies: float
    decoding: float
    disk: float
    is_cold: bool
    reads_files: bool
    batch_s: float
    workers: int
    cpus: int
    turns: int


@dataclass(frozen=True)
class CoresAdvice:
    """How many cores would decode fast enough.

    Attributes:
        cores: As many cores, and workers of the DataLoader.
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
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    turns = min(len(values) for values in timed.values())
    values = [v for name in PHASES for v in timed[name]]
    if not turns or not all(n > 0 and math.isfinite(s) and s > 0 for n, s in values):
        return None
    means = [median(s / n for n, s in timed[name]) for name in PHASES]
    gpu, replayed, cached, ordinary = make_rising(means)
    return InputStalls(
        gpu=gpu / ordinary,
        copies=(replayed - gpu) / ordinary,
        decoding=(cached - replayed) / ordinary,
        disk=(ordinary - cached) / ordinary,
        is_cold=read >= max(ASKED_LEAST, COLD_LEAST * asked),
        reads_files=asked >= ASKED_LEAST,
        batch_s=ordinary,
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
    busy = stalls.gpu + stalls.copies
    now = max(1, min(stalls.workers, stalls.cpus))
    decodes = (stalls.decoding + busy) * now if stalls.workers else stalls.decoding
    cores = min(CORES_MOST, max(math.ceil(decodes / busy - 1e-6), now + (stalls.workers > 0)))
    left = max(busy, decodes / cores) + stalls.disk
    return CoresAdvice(cores, now, 1.0 / left)
