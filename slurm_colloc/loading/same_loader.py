"""Which loaders are the same, and which cannot be shared at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import re
import sys
import sysconfig
from argparse import Namespace
from types import CodeType, FunctionType, ModuleType
from typing import Any

_DEEPEST = 8
_SETTINGS_MOST = 100


def find_obstacle(loader: Any) -> str:
    """Why a loader cannot be shared, as the end of a sentence; empty where it can."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(loader, data.DataLoader):
        return f"it is a {type(loader).__name__}, no DataLoader of torch"
    if isinstance(loader.dataset, data.IterableDataset):
        return "its dataset is an IterableDataset"
    if loader.batch_sampler is None:
        return "it has no batch size"
    if type(loader.batch_sampler) is not data.BatchSampler:
        return f"its batch_sampler is a {type(loader.batch_sampler).__name__}"
    if type(loader).__iter__ is not data.DataLoader.__iter__:
        return f"{type(loader).__name__} iterates in a way of its own"
    try:
        length = len(loader)
    except TypeError:
        return "it has no length"
    return "" if length else "it is empty"


def has_free_order(loader: Any) -> bool:
    """Whether its order is drawn from torch's own random numbers, so that any other will do."""
    import torch

    data = torch.utils.data
    drawn = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
    sampler = loader.batch_sampler.sampler
    return type(sampler) in drawn and sampler.generator is None and loader.generator is None


def identify(loader: Any, key: str | None) -> tuple[str, dict[str, str]]:
    """What a loader is, as a short text: the same for those that give the same batches.

    Args:
        loader: One that can be shared.
        key: What the user calls it, in place of what its dataset and functions are.

    Returns:
        The text; and sums of its parts by their names, by which two that differ can be compared.

    Raises:
        Exception: Its parts cannot be pickled, so that they cannot be compared.
    """
    batches = loader.batch_sampler
    sampler = batches.sampler
    parts: dict[str, Any] = {
        "key": key,
        "its length": len(sampler),
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "its sampler": type(sampler).__qualname__,
        "whether it has workers": loader.num_workers > 0,
    }
    if key is None:
        own = {k: v for k, v in vars(sampler).items() if k not in {"data_source", "dataset"}}
        parts.update(
            {
                "its dataset": loader.dataset,
                "collate_fn": loader.collate_fn,
                "worker_init_fn": loader.worker_init_fn,
                "its sampler's settings": own,
                "generator": loader.generator,
            }
        )
    read: dict[str, Any] = {}
    sums = {name: _compute_sum(part, read) for name, part in parts.items()}
    whole = hashlib.blake2b(repr(sums).encode()).hexdigest()
    named: dict[str, str] = {}
    for name, value in _list_settings(read):
        # They are in the sums above as well; these only name what differs.
        with contextlib.suppress(Exception):
            named[name] = _compute_sum(value, {})
    return whole[:16], {**named, **sums}


def find_difference(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Names of the parts in which two loaders differ, what the program sets first."""
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def _compute_sum(part: Any, read: dict[str, Any]) -> str:
    """The sum of a part; the global variables that its code reads are added to `read`."""
    digest = _Digest()
    pickler = _ContentPickler(digest, protocol=4)
    pickler.dump(part)
    read.update(pickler.settings_read)
    return digest.sum.hexdigest()[:16]


def _list_settings(read: dict[str, Any]) -> list[tuple[str, Any]]:
    """Global variables by name; of what holds several settings, each: `args.crop`."""
    found: list[tuple[str, Any]] = []
    for name, value in sorted(read.items()):
        inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        each = [(f"{name}.{k}", v) for k, v in inside.items() if isinstance(k, str)]
        found += each or [(name, value)]
    return found[:_SETTINGS_MOST]


def compute_order_digest(order: list[Any]) -> bytes:
    """What tells one order of samples from another."""
    return hashlib.blake2b(repr(order).encode(), digest_size=16).digest()


class _Digest(io.RawIOBase):
    """Takes what is written into a sum, and keeps none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = hashlib.blake2b()

    def write(self, content: Any, /) -> int:
        self.sum.update(content)
        return len(content)


class _ContentPickler(pickle.Pickler):
    """Pickles functions and classes of the program by what they do, not by their names alone.

    Two scripts each have a `__main__.Pictures`; and the same script, called with other arguments,
    may have a transform that reads these from a global variable.
    """

    def __init__(self, file: _Digest, protocol: int) -> None:
        super().__init__(file, protocol)
        self._known: set[int] = set()
        self.settings_read: dict[str, Any] = {}

    def reducer_override(self, value: Any) -> Any:
        """As pickle asks for each object."""
        if value is not _name and isinstance(value, (FunctionType, type)):
            return self._reduce_code(value)
        parts = _list_parts(value)
        return NotImplemented if parts is None else (_name, parts)

    def _reduce_code(self, value: Any) -> Any:
        if _is_of_program(value):
            return self._reduce_program(value)
        name = (value.__module__, value.__qualname__)
        # A function inside another is not known by its name.
        if isinstance(value, FunctionType) and "<" in value.__qualname__:
            return _name, (*name, value.__code__, _cells(value))
        return _name, name

    def _reduce_program(self, value: Any) -> Any:
        name = (value.__module__, value.__qualname__)
        if id(value) in self._known or len(self._known) > 1000:
            return _name, name
        self._known.add(id(value))
        if isinstance(value, type):
            members = [(each, part) for each, part in sorted(vars(value).items()) if _is_code(part)]
            bases = tuple(base for base in value.__bases__ if base is not object)
            return _name, (*name, bases, members)
        globals_read = [
            (each, value.__globals__[each])
            for each in sorted(_list_names(value.__code__))
            if _is_value(value.__globals__.get(each))
        ]
        self.settings_read.update(
            (each, found)
            for each, found in globals_read
            if not isinstance(found, (FunctionType, type))
        )
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, _cells(value))
        return _name, (*name, *parts, globals_read)


def _list_parts(value: Any) -> tuple[Any, ...] | None:
    """What makes up an object that pickle cannot tell from others, or differs in each process."""
    import torch

    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return (str(value.dtype), tuple(value.shape), array)
    if isinstance(value, torch.Generator):
        return ("generator", value.initial_seed(), value.get_state())
    if isinstance(value, ModuleType):
        return ("module", value.__name__)
    if isinstance(value, CodeType):
        constants = [_sort(part) for part in value.co_consts]
        return ("code", value.co_code, value.co_names, constants, value.co_varnames)
    if isinstance(value, (classmethod, staticmethod)):
        return ("method", value.__func__)
    return ("property", value.fget) if isinstance(value, property) else None


def _name(*_parts: object) -> None:
    """What pickle is told to rebuild with; nothing is ever rebuilt."""


def _is_code(part: Any) -> bool:
    kinds = (FunctionType, classmethod, staticmethod, property, int, float, str, tuple)
    return isinstance(part, kinds)


def _is_value(found: Any) -> bool:
    """Whether a global variable is a setting or code, and no model, file or log."""
    kinds = (int, float, str, bytes, tuple, list, dict, Namespace, FunctionType, type)
    return isinstance(found, kinds) or hasattr(found, "__dataclass_fields__")


def _sort(constant: Any) -> Any:
    # Strings come in another order in each process.
    return sorted(constant, key=repr) if isinstance(constant, frozenset) else constant


def _cells(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def _list_names(code: CodeType, depth: int = _DEEPEST) -> set[str]:
    names = set(code.co_names)
    for part in code.co_consts if depth else ():
        if isinstance(part, CodeType):
            names |= _list_names(part, depth - 1)
    return names


_LIBRARY = os.path.join(sysconfig.get_paths()["stdlib"], "")
_PACKAGES = re.compile("/(?:site|dist)-packages/")
"""Of any environment: that of a cluster's module is on PYTHONPATH, and not this program's."""


def _is_of_program(value: Any) -> bool:
    """Whether something is the program's own, not of an installed package."""
    module = sys.modules.get(value.__module__ or "")
    file = getattr(module, "__file__", None)
    if value.__module__ == "__main__":
        return True
    return isinstance(file, str) and not (file.startswith(_LIBRARY) or _PACKAGES.search(file))
