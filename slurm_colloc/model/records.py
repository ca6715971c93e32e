"""Making a value of JSON: one tolerant way for all records; pure.

Login nodes and compute nodes are not upgraded in the same moment, and a pack may outlive an
upgrade. So a record is read by these rules, whichever version wrote it:

- what this csub does not know is passed over;
- what is missing has the default of its field. A field without one has been written since the
  first version and stays, so a new field always has a default (tests/store/test_versions.py);
- a word that an enumeration here lacks stands for the default of its field; where the field has
  none it is kept and shown as it is; in a list it is left out;
- anything else that does not fit makes this one record a damaged one, and says which field.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

Record = TypeVar("Record")
Word = TypeVar("Word", bound=enum.StrEnum)

_Reader = Callable[[Any], Any]


def build_record(kind: type[Record], value: object) -> Record:
    """Make a record of its JSON value, by the rules above.

    Raises:
        ValueError: A field is missing that has no default, or has a value of another kind.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a {kind.__name__} is a JSON object")
    found = {}
    for field in _list_fields(typing.cast("type", kind)):
        if field.name not in value:
            if field.is_required:
                raise ValueError(f"{field.name} is missing")
            continue
        try:
            item = field.read(value[field.name])
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{field.name}: {error}") from error
        is_odd = isinstance(item, enum.StrEnum) and not is_known(item)
        if field.is_required or not is_odd:
            found[field.name] = item
    return kind(**found)


class _RecordField(NamedTuple):
    name: str
    is_required: bool
    read: _Reader


@functools.cache
def _list_fields(kind: type) -> tuple[_RecordField, ...]:
    # A kind of record has loaded it, as late_definitions does or in full.
    from dataclasses import MISSING, fields

    hints = typing.get_type_hints(kind)
    return tuple(
        _RecordField(
            field.name,
            field.default is MISSING and field.default_factory is MISSING,
            _make_reader(hints[field.name]),
        )
        for field in fields(kind)
    )


def _make_reader(hint: Any) -> _Reader:
    """What reads a JSON value into a type that a record's field has."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (argument for argument in inner if argument is not type(None))
        read = _make_reader(kind)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        return _make_list_reader(inner)
    if origin is Mapping:
        read_pair = _make_list_reader(inner)
        return lambda value: dict(map(read_pair, _take(value, list)))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return lambda value: read_word(hint, _take(value, str))
    if hasattr(hint, "__dataclass_fields__"):
        return functools.partial(_build_part, hint)
    if hint is float:
        return _take_number
    return functools.partial(_take, kind=hint)


def _make_list_reader(inner: tuple[Any, ...]) -> _Reader:
    if len(inner) == 2 and inner[1] is Ellipsis:
        read = _make_reader(inner[0])

        plain = {inner[0]} & {int, str}

        def read_all(value: object) -> tuple[Any, ...]:
            given = _take(value, list)
            # The elements of a large array, which each of its packs names.
            if plain and plain.issuperset(map(type, given)):
                return tuple(given)
            items = map(read, given)
            return tuple(i for i in items if not isinstance(i, enum.StrEnum) or is_known(i))

        return read_all
    readers = [_make_reader(kind) for kind in inner]

    def read_each(value: object) -> tuple[Any, ...]:
        items = _take(value, list)
        if len(items) < len(readers):
            raise ValueError(f"{len(readers)} values belong there, not {len(items)}")
        return tuple(read(item) for read, item in zip(readers, items, strict=False))

    return read_each


def _build_part(kind: Any, value: object) -> object:
    # An exit code is written as one text, `0:9`.
    if isinstance(value, str) and hasattr(kind, "parse"):
        return kind.parse(value)
    return build_record(kind, value)


def _take(value: object, kind: type) -> Any:
    # To Python True is a number, and what was made with tuples is read before it was JSON, too.
    is_sequence = kind is list and isinstance(value, tuple)
    is_number = isinstance(value, bool) and kind is not bool
    if not is_sequence and (not isinstance(value, kind) or is_number):
        raise ValueError(f"{_NAMES[kind]} belongs there, not {ascii(value)[:40]}")
    return value


def _take_number(value: object) -> float:
    if not is_number(value):
        raise ValueError(f"a number belongs there, not {ascii(value)[:40]}")
    return float(value)


_NAMES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", list: "a list", str: "a text",
}  # fmt: skip


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number: to Python True is one, too, and those of JSON may be of any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def read_word(kind: type[Word], text: str) -> Word:
    """The word of an enumeration, or one of its kind that is none of those known here.

    The latter is shown as it was written, equals only itself, and is in no table of this csub.

    Args:
        kind: The enumeration.
        text: What the record has.
    """
    try:
        return kind(text)
    except ValueError:
        word = str.__new__(kind, text)
        word._name_ = text
        word._value_ = text
        # A copy of a word is the word itself, as of those that are known; Python before 3.12 looks
        # for it among the enumeration's.
        word.__dict__["__deepcopy__"] = lambda _memo: word
        return word


def is_known(word: enum.StrEnum) -> bool:
    """Whether this csub knows a word that was read from a record."""
    return any(word is known for known in type(word))
