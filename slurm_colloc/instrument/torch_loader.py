"""Counts batches and samples of torch's DataLoader, and how long the program waits for them."""

from __future__ import annotations

import functools
import os
from collections import UserDict
from itertools import islice
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import layout
from .tally import tally

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 4
WIDEST = 16


class _FetchState:
    """Whether a thread is fetching a batch: a loader may draw from another."""

    __slots__ = ("fetching",)

    def __init__(self) -> None:
        self.fetching = False


# By thread; a threading.local would take longer.
_nests: dict[int, _FetchState] = {}
# Threads that fetched when the process forked are not in the child, but their numbers come back.
os.register_at_fork(after_in_child=_nests.clear)

# torch's Tensor itself; until that is known a type that no part of a batch has.
_tensor: Any = _FetchState


def _make_nest() -> _FetchState:
    nest = _nests[get_ident()] = _FetchState()
    return nest


def hook_loader(module: ModuleType) -> None:
    """Count from now on; `module` is torch.utils.data.dataloader, just imported."""
    global _tensor  # noqa: PLW0603 - it is torch's to define
    _tensor = module.torch.Tensor
    iterator = module._BaseDataLoaderIter
    original: Callable[[Any], Any] = iterator.__next__

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        nest = _nests.get(get_ident()) or _make_nest()
        if nest.fetching or not tally.active:
            return original(self)
        begun_ns = monotonic_ns()
        try:
            nest.fetching = True
            batch = original(self)
            ended_ns = monotonic_ns()
        finally:
            nest.fetching = False
        # An iterator lives for one epoch, its sampler as long as its loader.
        loader = id(getattr(self, "_index_sampler", self))
        workers = getattr(self, "_num_workers", None)
        tally.count_batch(loader, measure_batch(batch), begun_ns, ended_ns, workers)
        return batch

    # A loader is never part of a graph.
    fetch._torchdynamo_disable = True  # type: ignore[attr-defined]
    iterator.__next__ = fetch
    if os.environ.get(layout.STALLS):
        from .torch_stalls import hook_stalls

        hook_stalls(module)


def measure_batch(batch: Any) -> int:
    """Samples in a batch: dimension 0 of the first tensor in it, 0 where there is none."""
    try:
        # Of most batches the first part is a tensor; what is found below is the same, but later.
        kind = type(batch)
        first = batch[0] if kind is list or kind is tuple else batch
        if type(first) is _tensor:
            # Neither len() nor size() is quicker than to make a shape.
            shape = first.shape
            if shape:
                return int(shape[0])
        return max(_measure(batch, DEEPEST), 0)
    except Exception:
        # A batch is whatever the program makes of it.
        return 0


def _measure(value: Any, depth: int) -> int:
    """Dimension 0 of the first tensor; -1 where none is found."""
    kind = type(value)
    if kind is _tensor:
        shape = value.shape
        return int(shape[0]) if shape else -1
    if kind is str:
        return -1
    parts: Any
    if isinstance(value, (list, tuple)):
        parts = value
    # isinstance would ask the abstract classes that a UserDict is of, and take longer. Of both,
    # some have their keys as attributes too, one called "shape" among them.
    elif isinstance(value, dict) or UserDict in kind.__mro__:
        parts = value.values()
    else:
        shape = getattr(value, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else -1
        if isinstance(value, (str, bytes)):
            return -1
        values = getattr(value, "values", None)
        if values is None:
            return -1
        parts = values()
    if depth == 0:
        return -1
    for part in islice(parts, WIDEST):
        found = _measure(part, depth - 1)
        if found >= 0:
            return found
    return -1
