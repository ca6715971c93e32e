"""Dataclasses that are quick to define, for their methods come with the first instance.

`dataclasses.dataclass` writes the source of up to six methods for each class and compiles it, for
about a millisecond. A command loads more than a hundred classes and makes instances of a few. What
compares and shows instances is not written at all here; the rest is as in `dataclasses`.
"""

from __future__ import annotations

import dataclasses
from _thread import RLock
from dataclasses import KW_ONLY, MISSING, Field, asdict, field, fields, is_dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = [
    "KW_ONLY", "MISSING", "Field", "asdict", "dataclass", "field", "fields", "is_dataclass",
    "replace",
]  # fmt: skip

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(kind: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`: the class gets its methods with its first instance."""
        if kind is None:
            return lambda given: dataclass(given, **options)
        own = vars(kind)
        if not options.keys().isdisjoint(_AT_ONCE) or not own.keys().isdisjoint(_BY_HAND):
            return dataclasses.dataclass(kind, **options)
        body = {name: value for name, value in own.items() if name not in _NOT_TO_COPY}
        base = _Late
        if options.get("eq", True) and not options.get("order"):
            base = _Compared
            options |= {"repr": False, "eq": False}
            if not options.get("frozen"):
                body["__hash__"] = None
        # Made again with one base more. A placeholder of its own would have to go before the
        # methods come, and another thread would find a class with neither.
        bases = [known for known in kind.__bases__ if known is not object]
        late = type(kind)(kind.__name__, (*bases, base), body)
        late.__qualname__ = kind.__qualname__
        late.__dataclass_fields__ = _Fields(late, options)
        return late


_AT_ONCE = frozenset({"slots", "unsafe_hash"})
_BY_HAND = frozenset({"__init__", "__eq__", "__hash__"})
_NOT_TO_COPY = frozenset({"__dict__", "__weakref__"})
_FIELDS = "__dataclass_fields__"
_WRITING = RLock()


class _Late:
    """What answers until a class has its methods."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _write_methods(type(self)).__init__(self, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _write_methods(type(self))
        self.__dict__.update(state)

    def __repr__(self) -> str:
        shown = [one.name for one in fields(type(self)) if one.repr]  # type: ignore[arg-type]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"


class _Compared(_Late):
    """The same where instances of equal fields are equal."""

    __slots__ = ()
    _compared: Any

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(self._compared(self) == self._compared(other))

    def __hash__(self) -> int:
        return hash(self._compared(self))


class _Fields:
    """Stands for the fields of a class until they are asked for; `dataclasses` does that first."""

    def __init__(self, owner: type, options: dict[str, bool]) -> None:
        self.owner, self.options = owner, options

    def __get__(self, instance: object, kind: type) -> Any:
        with _WRITING:
            if vars(self.owner)[_FIELDS] is self:
                written: Any = dataclasses.dataclass(**self.options)(self.owner)
                names = [one.name for one in fields(written) if one.compare]
                # Of a single name it would give no tuple.
                written._compared = attrgetter(*names, *names[:1]) if names else type
        return getattr(kind, _FIELDS)


def _write_methods(kind: type) -> Any:
    """Have those of the dataclass written that an instance's class is, or is derived from."""
    owner = next(base for base in kind.__mro__ if _FIELDS in vars(base))
    getattr(owner, _FIELDS)
    return owner
