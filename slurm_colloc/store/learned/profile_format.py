"""The JSON form of a usage profile."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.usage.observation import RunningStatistics
from slurm_colloc.model.usage.profile import ProfileRecord
from slurm_colloc.model.usage.shrunken_mean import LARGEST, ShrunkenMean
from slurm_colloc.store.foreign_json import show_foreign
from slurm_colloc.store.record_files import build_record

PROFILE_SCHEMA = 1

_SIGNATURE = re.compile(r"[0-9a-f]{32}")

_NUMBER_MOST = 1e15
_COUNT_MOST = 10**9
_TEXT_MOST = 1000
_TEXTS_MOST = 10_000
_MODEL_MOST = 100
"""It stands in a file's name."""


def build_profile_mapping(record: ProfileRecord) -> dict[str, Any]:
    """The JSON form of a usage profile."""
    value = {"schema": PROFILE_SCHEMA, **dataclasses.asdict(record)}
    # Slurm sets no such bound to a job's name, and what is written must be read.
    value["name"] = record.name[:_TEXT_MOST]
    return {key: list(item) if isinstance(item, tuple) else item for key, item in value.items()}


def parse_profile(value: object, where: str) -> ProfileRecord:
    """Read the JSON form of a usage profile.

    Args:
        value: The value.
        where: Where it stands, for the message.

    Raises:
        UsageProblem: It is no usage profile, or one of another schema version.
    """
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: a usage profile is a JSON object")
    if value.get("schema") != PROFILE_SCHEMA or value.get("schema") is True:
        raise UsageProblem(
            f"{where}: schema: it is of version {show_foreign(value.get('schema'))}, "
            f"this csub reads {PROFILE_SCHEMA}"
        )
    try:
        record = build_record(ProfileRecord, value)
        _check_ranges(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageProblem(f"{where}: {error}") from error
    return record


def _check_ranges(record: ProfileRecord) -> None:
    """See that a profile is one that csub could have written.

    Raises:
        ValueError: It is not; the text names the field.
    """
    for name in ("signature", "family"):
        if not _SIGNATURE.fullmatch(getattr(record, name)):
            raise ValueError(f"{name}: {show_foreign(getattr(record, name))} are not 32 hex digits")
    if len(record.gpu_model) > _MODEL_MOST:
        raise ValueError(f"gpu_model: is longer than {_MODEL_MOST} characters")
    if record.gpu_memory_total_mb is not None and record.gpu_memory_total_mb < 1:
        shown = show_foreign(record.gpu_memory_total_mb)
        raise ValueError(f"gpu_memory_total_mb: must be at least 1 MB, is {shown}")
    _check_count("samples", record.samples)
    for field in dataclasses.fields(record):
        name, item = field.name, getattr(record, field.name)
        if isinstance(item, str | tuple):
            _check_texts(name, item)
        elif isinstance(item, RunningStatistics):
            _check_count(name, item.n)
            for number in (item.mean, item.sd or 0.0, item.last):
                _check_number(name, number)
        elif isinstance(item, ShrunkenMean):
            _check_count(name, item.n)
            # A sum of so many may be off by a rounding.
            if abs(item.total) > item.n * LARGEST * (1 + 1e-9):
                raise ValueError(f"{name}: total: must be between -n and n")
        elif item is not None:
            _check_number(name, item)


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= _COUNT_MOST:
        raise ValueError(f"{name}: must be from 1 to {_COUNT_MOST}")


def _check_texts(name: str, item: str | tuple[str, ...]) -> None:
    texts = (item,) if isinstance(item, str) else item
    if len(texts) > _TEXTS_MOST or any(len(text) > _TEXT_MOST for text in texts):
        raise ValueError(f"{name}: must be at most {_TEXTS_MOST} texts of {_TEXT_MOST} characters")


def _check_number(name: str, number: float) -> None:
    if number < 0:
        raise ValueError(f"{name}: cannot be less than 0, is {number:g}")
    if number > _NUMBER_MOST:
        raise ValueError(f"{name}: cannot be more than {_NUMBER_MOST:g}, is {number:g}")
