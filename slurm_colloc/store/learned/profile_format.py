"""The JSON form of a usage profile."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import PeakSource
from slurm_colloc.model.usage.observation import (
    MeasuredBy,
    RunningStatistics,
)
from slurm_colloc.model.usage.profile import (
    MEANS,
    PEAKS,
    STATISTICS,
    ProfileRecord,
)
from slurm_colloc.model.usage.shrunken_mean import LARGEST, ShrunkenMean
from slurm_colloc.store.foreign_json import show_foreign

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
    known = {field.name for field in dataclasses.fields(ProfileRecord)}
    fields: dict[str, Any] = _take_identity(value, where)
    fields["samples"] = _take(value, "samples", where, int, "a whole number")
    if not 1 <= fields["samples"] <= _COUNT_MOST:
        raise UsageProblem(f"{where}: samples: must be from 1 to {_COUNT_MOST}")
    fields["updated_at"] = _take_number(value, "updated_at", where)
    if fields["updated_at"] is None:
        raise UsageProblem(f"{where}: updated_at: must be a number")
    for key in ("gpu_uuids", "seen", "completed", "compared"):
        fields[key] = _take_texts(value.get(key, []), f"{where}: {key}")
    for key in (*MEANS, *PEAKS):
        fields[key] = _take_number(value, key, where)
    total_mb = fields["gpu_memory_total_mb"]
    if total_mb is not None and total_mb < 1:
        shown = show_foreign(total_mb)
        raise UsageProblem(f"{where}: gpu_memory_total_mb: must be at least 1 MB, is {shown}")
    fields["gpu_memory_by"] = _take_peak_source(value, f"{where}: gpu_memory_by")
    for key in STATISTICS:
        fields[key] = _take_statistics(value.get(key), f"{where}: {key}")
    fields["measured_by"] = _take_measured_by(value.get("measured_by"), f"{where}: measured_by")
    for key in ("sensitivity", "pressure"):
        fields[key] = _take_shrunken(value.get(key), f"{where}: {key}")
    return ProfileRecord(**{key: item for key, item in fields.items() if key in known})


def _take_identity(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key in ("signature", "family", "name", "gpu_model"):
        fields[key] = _take(value, key, where, str, "a text")
    fields["kind"] = _take({"kind": "", **value}, "kind", where, str, "a text")
    for key in ("signature", "family"):
        if not _SIGNATURE.fullmatch(fields[key]):
            raise UsageProblem(f"{where}: {key}: {show_foreign(fields[key])} are not 32 hex digits")
    if len(fields["gpu_model"]) > _MODEL_MOST:
        raise UsageProblem(f"{where}: gpu_model: is longer than {_MODEL_MOST} characters")
    return fields


def _take(value: Mapping[str, Any], key: str, where: str, kind: type, words: str) -> Any:
    item = value.get(key)
    if not isinstance(item, kind) or isinstance(item, bool):
        raise UsageProblem(f"{where}: {key}: must be {words}, is {show_foreign(item)}")
    if isinstance(item, str) and len(item) > _TEXT_MOST:
        raise UsageProblem(f"{where}: {key}: is longer than {_TEXT_MOST} characters")
    return item


def _take_texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UsageProblem(f"{where}: must be a list of texts")
    if len(value) > _TEXTS_MOST or any(len(text) > _TEXT_MOST for text in value):
        raise UsageProblem(
            f"{where}: must be at most {_TEXTS_MOST} texts of at most {_TEXT_MOST} characters"
        )
    return tuple(value)


def _take_number(value: Mapping[str, Any], key: str, where: str) -> float | None:
    item = value.get(key)
    if item is None:
        return None
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise UsageProblem(f"{where}: {key}: must be a number or null, is {show_foreign(item)}")
    if item < 0:
        raise UsageProblem(f"{where}: {key}: cannot be less than 0, is {show_foreign(item)}")
    # Not a number is in no range, and a whole number may be too large for a float.
    if not item <= _NUMBER_MOST:
        raise UsageProblem(f"{where}: {key}: must be a number or null, is {show_foreign(item)}")
    return float(item)


def _take_measured_by(value: object, where: str) -> MeasuredBy:
    if value is None:
        # An older csub knew no other way.
        return MeasuredBy.ALONE
    if value not in list(MeasuredBy):
        words = " or ".join(MeasuredBy)
        raise UsageProblem(f"{where}: must be {words}, is {show_foreign(value)}")
    return MeasuredBy(value)  # type: ignore[arg-type]


def _take_peak_source(value: Mapping[str, Any], where: str) -> PeakSource:
    # An older csub knew NVML alone.
    item = value.get("gpu_memory_by", PeakSource.NVML.value)
    if item not in list(PeakSource):
        words = " or ".join(PeakSource)
        raise UsageProblem(f"{where}: must be {words}, is {show_foreign(item)}")
    return PeakSource(item)


def _take_statistics(value: object, where: str) -> RunningStatistics | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: must be null or have mean, sd, n and last")
    n = _take(value, "n", where, int, "a whole number")
    mean, last = _take_number(value, "mean", where), _take_number(value, "last", where)
    if not 1 <= n <= _COUNT_MOST or mean is None or last is None:
        raise UsageProblem(f"{where}: must be null or have mean, sd, n and last")
    return RunningStatistics(mean, _take_number(value, "sd", where), n, last)


def _take_shrunken(value: object, where: str) -> ShrunkenMean | None:
    if value is None:
        return None
    words = f"{where}: must be null or have n and a total between -n and n"
    if not isinstance(value, dict):
        raise UsageProblem(words)
    n, total = _take(value, "n", where, int, "a whole number"), value.get("total")
    if isinstance(total, bool) or not isinstance(total, int | float):
        raise UsageProblem(words)
    # A sum of so many may be off by a rounding.
    if not 1 <= n <= _COUNT_MOST or not abs(total) <= n * LARGEST * (1 + 1e-9):
        raise UsageProblem(words)
    return ShrunkenMean(float(total), n)
