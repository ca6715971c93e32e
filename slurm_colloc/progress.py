"""Tells csub how far a program is, where that cannot be seen from outside.

    from slurm_colloc import progress

    progress.step(samples=128)   # once for each training step

    progress.metric(loss=loss)   # a result, whenever there is a newer one

Under csub this works in every Python from 3.8 on, whether slurm_colloc is installed in it or
not. Without csub these functions do nothing. None ever raises; a step takes about a microsecond,
and a metric some ten. What a program says itself takes the place of what csub would have counted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slurm_colloc.instrument.results import Results
    from slurm_colloc.instrument.tally import Tally

__all__ = ["metric", "skip", "step"]


def step(samples: int | None = None, steps: int = 1) -> None:
    """Count finished training steps.

    Args:
        samples: Samples that they used, of this process alone where several train; None where
            that is not known, or is to be counted at the DataLoader.
        steps: How many steps.
    """
    _count(steps, 0, samples)


def skip(steps: int = 1) -> None:
    """Count steps that were skipped, such as one whose gradients were infinite."""
    _count(0, steps, None)


def metric(values: Mapping[str, float] | None = None, /, **more: float) -> None:
    """Report results, such as a loss or an accuracy; the last value of each counts.

    They are columns of `csub report`, its page and its CSV. Where several processes train
    together, those of rank 0 count.

    Args:
        values: Numbers by name, for names that are no words of Python's: `{"val/loss": 0.3}`.
        more: Numbers by name.
    """
    try:
        _RESULTS.note("python", {**(values or {}), **more})
    except Exception:
        # As for steps.
        pass


def _count(steps: int, skipped: int, samples: int | None) -> None:
    try:
        _TALLY.count_by_hand(int(steps), int(skipped), None if samples is None else int(samples))
    except Exception:
        # A program does not end because it could not be counted.
        pass


def _find_own() -> tuple[Tally, Results]:
    # The instrument may have been loaded from its folder already, under a name of its own.
    if "_slurm_colloc_instrument" in sys.modules:
        from _slurm_colloc_instrument.results import results  # type: ignore[import-not-found]
        from _slurm_colloc_instrument.tally import tally  # type: ignore[import-not-found]
    else:
        from slurm_colloc.instrument.results import results
        from slurm_colloc.instrument.tally import tally
    return tally, results


_TALLY, _RESULTS = _find_own()
