"""Dataclasses whose methods are written when the first instance is made; the rest is dataclasses'.

`dataclasses.dataclass` writes the source of up to six methods and compiles it, for about a
millisecond a class. A command loads more than a hundred of them and makes instances of a few.
"""

from __future__ import annotations

import dataclasses
from _thread import RLock
from dataclasses import KW_ONLY, MISSING, Field, asdict, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(kind: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`: the class gets its methods with its first instance."""
        if kind is None:
            return lambda given: dataclass(given, **options)
        if options.get("slots") or "__init__" in vars(kind):
            return dataclasses.dataclass(kind, **options)
        body = {name: value for name, value in vars(kind).items() if name not in _NOT_TO_COPY}
        # Made again with one base more. A placeholder of its own would have to go before the
        # methods come, and another thread would find a class with neither.
        bases = [base for base in kind.__bases__ if base is not object]
        late = type(kind)(kind.__name__, (*bases, _Unwritten), body)
        late.__qualname__ = kind.__qualname__
        late.__dataclass_fields__ = _Fields(late, options)
        return late


__all__ = [
    "KW_ONLY",
    "MISSING",
    "Field",
    "asdict",
    "dataclass",
    "field",
    "fields",
    "is_dataclass",
    "replace",
]

_FIELDS = "__dataclass_fields__"
_NOT_TO_COPY = frozenset({"__dict__", "__weakref__"})
_WRITING = RLock()


class _Unwritten:
    """Makes the first instance of a class; the methods of the class come before these."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _write_methods(type(self)).__init__(self, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _write_methods(type(self))
        self.__dict__.update(state)


class _Fields:
    """Stands for the fields of a class until somebody asks for them: dataclasses does first."""

    def __init__(self, owner: type, options: dict[str, bool]) -> None:
        self.owner, self.options = owner, options

    def __get__(self, instance: object, kind: type) -> Any:
        with _WRITING:
            if vars(self.owner)[_FIELDS] is self:
                dataclasses.dataclass(**self.options)(self.owner)
        return getattr(kind, _FIELDS)


def _write_methods(kind: type) -> Any:
    """Write those of the dataclass that an instance's class is, or is derived from."""
    owner = next(base for base in kind.__mro__ if _FIELDS in vars(base))
    getattr(owner, _FIELDS)
    return owner
