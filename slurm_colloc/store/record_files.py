"""Reading a record of the state: one tolerant way for all of them, in both directions.

Login nodes and compute nodes are not upgraded in the same moment, and a pack may outlive an
upgrade. So a record is read by these rules, whichever version wrote it:

- what this csub does not know is passed over;
- what is missing has the default of its field. A field without one has been written since the
  first version and stays, so a new field always has a default (tests/store/test_versions.py);
- a word that an enumeration here lacks stands for the default of its field; where the field has
  none it is kept and shown as it is (model.member); in a list it is left out;
- anything else that does not fit makes this one record a damaged one, and says which field.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import MISSING, dataclass, fields, is_dataclass
from slurm_colloc.model.member import is_known, read_word
from slurm_colloc.model.quantities import is_number
from slurm_colloc.store.atomic_files import read_json

Record = TypeVar("Record")

_Reader = Callable[[Any], Any]


def read_record(path: Path | str, kind: type[Record]) -> Record | None:
    """Read the file of a record; None if there is none.

    Args:
        path: The file.
        kind: The record's dataclass.

    Raises:
        StateError: It cannot be read, is damaged, or has a newer schema.
    """
    value = read_json(path)
    return None if value is None else parse_record(kind, value, path)


def parse_record(kind: type[Record], value: object, path: Path | str) -> Record:
    """Make a record of its JSON value.

    Args:
        kind: Its dataclass.
        value: The value.
        path: Where it was read, for the message.

    Raises:
        StateError: It is damaged.
    """
    try:
        return build_record(kind, value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged ({error})", hint="move it away; the Slurm job is not touched"
        ) from error


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


@dataclass(frozen=True)
class _RecordField:
    name: str
    is_required: bool
    read: _Reader


@functools.cache
def _list_fields(kind: type) -> tuple[_RecordField, ...]:
    hints = typing.get_type_hints(kind)
    missing = MISSING
    return tuple(
        _RecordField(
            field.name,
            field.default is missing and field.default_factory is missing,
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
    if is_dataclass(hint):
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
