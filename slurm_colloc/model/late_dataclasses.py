"""Dataclasses that are quick to define, for their methods come with the first instance.

`dataclasses.dataclass` writes the source of up to six methods for each class and compiles it, for
about a millisecond. A command loads more than a hundred classes and makes instances of a few. Here
`__init__` alone is written, when it is called first; the others are the same for all classes. What
are fields, and what is said of them, `dataclasses` decides.
"""

from __future__ import annotations

import sys
from _thread import RLock
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _LateModule(ModuleType):
    """Stands for a module that is loaded if something is taken from it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


# `dataclasses` has it for classes without a docstring; loading it takes longer than Python's start.
_given = sys.modules.setdefault("inspect", _LateModule("inspect"))
import dataclasses  # noqa: E402
from dataclasses import (  # noqa: E402
    KW_ONLY,
    MISSING,
    Field,
    FrozenInstanceError,
    asdict,
    field,
    fields,
    is_dataclass,
    replace,
)

if isinstance(_given, _LateModule):
    sys.modules.pop("inspect", None)

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
        if not _AT_ONCE.isdisjoint((*options, *own)):
            return dataclasses.dataclass(kind, **options)
        body = {name: value for name, value in own.items() if name not in _NOT_TO_COPY}
        # `dataclasses` would make one of the signature.
        body["__doc__"] = kind.__doc__ or kind.__name__
        is_frozen, is_compared = options.get("frozen", False), options.get("eq", True)
        if is_compared and not is_frozen:
            body["__hash__"] = None
        # Made again with bases more. Placeholders of its own would have to go before the methods
        # come, and another thread would find a class with neither.
        bases = [base for base in kind.__bases__ if base is not object]
        bases += [*[_Frozen] * is_frozen, _Compared if is_compared else _Late]
        late = type(kind)(kind.__name__, tuple(bases), body)
        late.__qualname__ = kind.__qualname__
        setattr(late, _FIELDS, _Fields(late, kw_only=options.get("kw_only", False)))
        return late


_FIELDS = "__dataclass_fields__"
_NOT_TO_COPY = frozenset({"__dict__", "__weakref__"})
_AT_ONCE = frozenset({"slots", "order", "unsafe_hash", "__init__", "__eq__", "__hash__"})
"""Options and methods of a class that is left to `dataclasses`."""
_WRITING = RLock()


class _Late:
    """The methods of all dataclasses."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _find_dataclass(type(self)).__init__(self, *args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _find_dataclass(type(self))
        self.__dict__.update(state)

    def __repr__(self) -> str:
        shown = [one.name for one in fields(type(self)) if one.repr]  # type: ignore[arg-type]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"


class _Compared(_Late):
    """Those of classes whose instances are equal if their fields are."""

    __slots__ = ()
    _compared: Any

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(self._compared(self) == self._compared(other))

    def __hash__(self) -> int:
        return hash(self._compared(self))


class _Frozen:
    """Those of classes whose instances do not change; a class that is derived may add something."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self)
        if _FIELDS in vars(kind) or name in getattr(kind, _FIELDS):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class _Fields:
    """Stands for the fields of a class until they are asked for; `dataclasses` does that first."""

    def __init__(self, owner: type, *, kw_only: bool) -> None:
        self.owner, self.kw_only = owner, kw_only

    def __get__(self, instance: object, kind: type) -> Any:
        with _WRITING:
            if vars(self.owner)[_FIELDS] is self:
                written: Any = dataclasses.dataclass(
                    init=False, repr=False, eq=False, kw_only=self.kw_only
                )(self.owner)
                names = [one.name for one in fields(written) if one.compare]
                # Of a single name it would give no tuple.
                written._compared = attrgetter(*names, *names[:1]) if names else type
                written.__init__ = _write_init(written)
        return getattr(kind, _FIELDS)


def _find_dataclass(kind: type) -> Any:
    """The dataclass that an instance's class is, or is derived from, with its methods."""
    owner = next(base for base in kind.__mro__ if _FIELDS in vars(base))
    # Another thread may be half way.
    with _WRITING:
        getattr(owner, _FIELDS)
    return owner


def _write_init(kind: Any) -> Any:
    """Compile a function that takes a value for each field and sets it."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_none": MISSING}
    taken, named, lines = ["self"], ["*"], []
    for one in fields(kind):
        name = value = one.name
        default = ""
        if one.default_factory is not MISSING:
            known[f"_make_{name}"], default = one.default_factory, " = _none"
            value = f"_make_{name}()"
            if one.init:
                value += f" if {name} is _none else {name}"
        elif one.default is not MISSING:
            known[f"_default_{name}"], default = one.default, f" = _default_{name}"
        if one.init:
            (named if one.kw_only else taken).append(f"{name}{default}")
        if one.init or one.default_factory is not MISSING:
            lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append(" self.__post_init__()")
    words = ", ".join((*taken, *named) if named[1:] else taken)
    exec("\n".join((f"def __init__({words}):", *lines, " return None")), known)
    known["__init__"].__qualname__ = f"{kind.__qualname__}.__init__"
    return known["__init__"]
