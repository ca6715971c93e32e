"""Reading a record of the state, by the rules of model.records."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.records import Record, build_record
from slurm_colloc.store.atomic_files import read_json


def read_record(path: Path | str, kind: type[Record]) -> Record | None:
    """Read the file of a record; None if there is none.

    Args:
        path: The file.
        kind: The record's dataclass.

    Raises:
        StateError: It cannot be read, is damaged, or has another schema.
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
