"""Quick to load: dataclasses and regular expressions made at their first use, a bare SHA-256.

`dataclasses.dataclass` writes the source of up to six methods for each class and compiles it, for
about a millisecond. A command loads more than a hundred classes and makes instances of a few. Here
`__init__` alone is written, when it is called first; the others are the same for all classes. What
are fields, and what is said of them, `dataclasses` decides.
"""

from __future__ import annotations

import operator
import re
import sys
from _thread import RLock
from collections.abc import Callable
from importlib import import_module
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
import dataclasses
from dataclasses import KW_ONLY, MISSING, Field, asdict, field, fields, is_dataclass, replace

if isinstance(_given, _LateModule):
    sys.modules.pop("inspect", None)

__all__ = [
    "KW_ONLY", "MISSING", "Field", "asdict", "dataclass", "field", "fields", "hash_sha256",
    "is_dataclass", "late_pattern", "replace",
]  # fmt: skip

_SHA256 = ("_sha2", "_sha256", "hashlib")
"""Where Python has it: from 3.12 on, before that, and always. As for `random`, which looks so, too,
OpenSSL's start of 3 ms is not worth some bytes."""


def hash_sha256(content: bytes) -> str:
    """The SHA-256 of some content, in hexadecimal."""
    for name in _SHA256:
        try:
            found: str = import_module(name).sha256(content).hexdigest()
        except ImportError:
            continue
        return found
    raise AssertionError("hashlib is part of Python")


if TYPE_CHECKING:
    from dataclasses import dataclass
    from re import compile as late_pattern
else:

    class late_pattern:  # noqa: N801 - it is called like a function
        """As `re.compile`: a command loads a hundred regular expressions, and uses ten of them."""

        def __init__(self, text: str) -> None:
            self._text = text

        def __getattr__(self, name: str) -> Any:
            found = getattr(re.compile(self._text), name)
            # It is found at once from now on.
            setattr(self, name, found)
            return found

    def dataclass(kind: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`: the class gets its `__init__` with its first instance."""
        if kind is None:
            return lambda given: dataclass(given, **options)
        own = vars(kind)
        if not _AT_ONCE.isdisjoint((*options, *own)):
            return dataclasses.dataclass(kind, **options)
        is_frozen = options.get("frozen", False)
        methods = {**_ALL, **(_FROZEN if is_frozen else {})}
        if options.get("eq", True):
            methods |= {**_COMPARED, **(_ORDERED if options.get("order") else {})}
            if not is_frozen:
                methods["__hash__"] = None
        for name, method in methods.items():
            if name not in own:
                setattr(kind, name, method)
        # `dataclasses` would make one of the signature.
        kind.__doc__ = kind.__doc__ or kind.__name__
        _DEFINED.append(kind)
        setattr(kind, _FIELDS, _Fields(kind, kw_only=options.get("kw_only", False)))
        return kind


_FIELDS = "__dataclass_fields__"
_AT_ONCE = frozenset({"slots", "unsafe_hash", "__init__", "__eq__", "__hash__"})
"""Options and methods of a class that is left to `dataclasses`."""
_COMPILED_AT = 16
"""With so many instances a class gets a compiled `__init__`."""
_MADE: dict[type, int] = {}
_WRITING = RLock()
_DEFINED: list[type] = []


def write_methods() -> None:
    """Write those of all classes that are defined, for processes that are forked to share them."""
    for kind in _DEFINED:
        _compile_init(_find_dataclass(kind))


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
                written.__dataclass_all__ = found = fields(written)
                names = [one.name for one in found if one.compare]
                # Of a single name it would give no tuple.
                values = operator.attrgetter(*names, *names[:1]) if names else type
                written.__dataclass_compare__ = values
        return getattr(kind, _FIELDS)


def _find_dataclass(kind: type) -> Any:
    """The dataclass that an instance's class is, or is derived from, with its methods."""
    owner = next(base for base in kind.__mro__ if _FIELDS in vars(base))
    with _WRITING:
        getattr(owner, _FIELDS)
    return owner


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stands for `__init__` until a class has had some instances: compiling one takes longer."""
    owner = _find_dataclass(type(self))
    made = _MADE[owner] = _MADE.get(owner, 0) + 1
    values = _bind(owner, args, kwargs) if made < _COMPILED_AT else None
    if values is None:
        _compile_init(owner)
        owner.__init__(self, *args, **kwargs)
        return
    for name, value in values.items():
        object.__setattr__(self, name, value)
    if hasattr(owner, "__post_init__"):
        self.__post_init__()


def _compile_init(owner: Any) -> None:
    with _WRITING:
        if owner.__init__ is _init:
            owner.__init__ = _write_init(owner)


def _bind(owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """A value for each field; None where the arguments do not fit, or not as simply as that."""
    values: dict[str, Any] = {}
    left, given = len(kwargs), len(args)
    for at, one in enumerate(owner.__dataclass_all__):
        if not one.init or one.kw_only:
            return None
        name = one.name
        if at < given:
            values[name] = args[at]
        elif name in kwargs:
            values[name] = kwargs[name]
            left -= 1
        elif one.default is not MISSING:
            values[name] = one.default
        elif one.default_factory is not MISSING:
            values[name] = one.default_factory()
        else:
            return None
    return None if left or given > len(values) else values


def _set_state(self: Any, state: dict[str, Any]) -> None:
    _find_dataclass(type(self))
    self.__dict__.update(state)


def _show(self: Any) -> str:
    shown = [one.name for one in fields(self) if one.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _hash(self: Any) -> int:
    return hash(self.__dataclass_compare__(self))


def _set(self: Any, name: str, value: object) -> None:
    kind = type(self)
    if _FIELDS in vars(kind) or name in getattr(kind, _FIELDS):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    # A class that is derived may have more.
    object.__setattr__(self, name, value)


def _delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _build_comparison(compare: Callable[[Any, Any], bool]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = self.__dataclass_compare__
        return compare(values(self), values(other))

    return method


_ALL = {"__init__": _init, "__setstate__": _set_state, "__repr__": _show}
_FROZEN = {"__setattr__": _set, "__delattr__": _delete}
_COMPARED = {"__eq__": _build_comparison(operator.eq), "__hash__": _hash}
_ORDERED = {
    f"__{compare.__name__}__": _build_comparison(compare)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge)
}


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
