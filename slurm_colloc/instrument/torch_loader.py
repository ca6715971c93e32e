"""Counts batches and samples of torch's DataLoader, and how long the program waits for them."""

from __future__ import annotations

import functools
import threading
from time import monotonic_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .tally import tally

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 4
WIDEST = 16


class _Nest(threading.local):
    """Whether this thread is fetching a batch: a loader may draw from another."""

    def __init__(self) -> None:
        self.fetching = False


_nest = _Nest()


def hook_loader(module: ModuleType) -> None:
    """Count from now on; `module` is torch.utils.data.dataloader, just imported."""
    iterator = module._BaseDataLoaderIter
    original: Callable[[Any], Any] = iterator.__next__

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        nest = _nest
        if nest.fetching or not tally.active:
            return original(self)
        nest.fetching = True
        begun = monotonic_ns()
        try:
            batch = original(self)
            waited_ns = monotonic_ns() - begun
        finally:
            nest.fetching = False
        # An iterator lives for one epoch, its sampler as long as its loader.
        loader = id(getattr(self, "_index_sampler", self))
        tally.count_batch(loader, measure_batch(batch), waited_ns)
        return batch

    # A loader is never part of a graph.
    fetch._torchdynamo_disable = True  # type: ignore[attr-defined]
    iterator.__next__ = fetch


def measure_batch(batch: Any) -> int:
    """Samples in a batch: dimension 0 of the first tensor in it, 0 where there is none."""
    try:
        return max(_measure(batch, DEEPEST), 0)
    except Exception:
        # A batch is whatever the program makes of it.
        return 0


def _measure(value: Any, depth: int) -> int:
    """Dimension 0 of the first tensor; -1 where none is found."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else -1
    if depth == 0 or isinstance(value, (str, bytes)):
        return -1
    if isinstance(value, (list, tuple)):
        parts = value[:WIDEST]
    else:
        values = getattr(value, "values", None)
        if values is None:
            return -1
        parts = list(values())[:WIDEST]
    for part in parts:
        found = _measure(part, depth - 1)
        if found >= 0:
            return found
    return -1
