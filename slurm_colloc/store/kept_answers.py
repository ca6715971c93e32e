"""What Slurm has answered, kept in `waits/` so that it is asked seldom; a file for each answer."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import fields, is_dataclass
from slurm_colloc.model.records import build_record
from slurm_colloc.store.atomic_files import make_directory, read_json, write_json

KEPT_S = 3600.0
"""How long an answer of Slurm's stands."""

_Answer = TypeVar("_Answer")


def _path(root: Path, name: str) -> Path:
    return root / "waits" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.json"


def read_kept(
    root: Path, name: str, about: str | None, kind: type[_Answer], kept_s: float = KEPT_S
) -> _Answer | None:
    """What was kept; None where that is old, damaged, about something else or not there.

    Args:
        root: The state directory.
        name: Of what was asked: the name of its file.
        about: What the answer depends on, such as the cluster.
        kind: The dataclass of the answer.
        kept_s: How long it stands.
    """
    with contextlib.suppress(StateError, KeyError, OverflowError, TypeError, ValueError):
        value = read_json(_path(root, name))
        if value is not None and value["about"] == about:
            is_fresh = 0 <= time.time() - float(value["made_at"]) <= kept_s
            return build_record(kind, value["answer"]) if is_fresh else None
    return None


def keep(root: Path, name: str, about: str | None, answer: Any) -> None:
    """Keep an answer, a dataclass; where that cannot be, Slurm is asked again."""
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        make_directory(root / "waits")
        value = {"about": about, "made_at": time.time(), "answer": _build_value(answer)}
        write_json(_path(root, name), value)


def _build_value(value: Any) -> Any:
    """The JSON form; mappings are lists of pairs, as some of their keys are no texts."""
    if is_dataclass(value):
        parts = fields(value)
        return {field.name: _build_value(getattr(value, field.name)) for field in parts}
    if isinstance(value, Mapping):
        return _build_value(tuple(value.items()))
    return list(map(_build_value, value)) if isinstance(value, tuple) else value
