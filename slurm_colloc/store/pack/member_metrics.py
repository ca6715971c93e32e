"""What is kept of members' results, such as their loss.

`report/metrics.json` has what programs report themselves: they write it next to their steps, in a
directory that is gone when the pack has ended. `members/NNNN/outputs.json` says which part of its
output files is a member's own, so that results are read there and not in what lay there before.
All of it is a user's, and believed as little as any text that a program prints.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.instrument.results import METRICS_MOST, NAME_MOST, SUFFIX
from slurm_colloc.store.atomic_files import make_directory, read_bytes, read_json, write_json
from slurm_colloc.store.pack.sample_files import report_directory
from slurm_colloc.store.record_files import read_record

SOURCES = ("python", "mlflow", "wandb")
_START = re.compile(r"([0-9]{4,})\.([0-9]+)", re.ASCII)
_FILES_MOST = 256
"""Processes of one start that are looked at."""
_BYTES_MOST = 1 << 16
_OUTPUTS = "outputs.json"
_LARGEST = 1e300


@dataclass(frozen=True)
class ReportedMetric:
    """A metric as a program has reported it.

    Attributes:
        last: The newest value; None where that was not finite.
        least: The least that was finite; None for none.
        greatest: The greatest likewise.
        source: Who said so, one of SOURCES.
        at: When, in seconds since the epoch.
    """

    last: float | None
    least: float | None
    greatest: float | None
    source: str
    at: float


Metrics = dict[str, ReportedMetric]


def metrics_path(pack: Path | str) -> str:
    """Where the results of a pack's members are kept."""
    return f"{report_directory(pack)}/metrics.json"


def keep_metrics(root: str, pack: Path | str) -> None:
    """Take what members' programs have reported so far into the pack.

    Args:
        root: Where each start of a member has a directory, `0003.1`.
        pack: The pack's directory.

    Raises:
        OSError: The starts cannot be listed.
        StateError: It cannot be written, or what was kept before is damaged.
    """
    kept = _parse_members(read_json(metrics_path(pack)))
    before = {number: dict(metrics) for number, metrics in kept.items()}
    for name in sorted(os.listdir(root)):
        match = _START.fullmatch(name)
        if match is None:
            continue
        for metrics in _read_start(f"{root}/{name}"):
            _join(kept.setdefault(int(match[1]), {}), metrics)
    if kept != before:
        make_directory(Path(report_directory(pack)))
        members = {
            str(number): {name: list(vars(one).values()) for name, one in metrics.items()}
            for number, metrics in kept.items()
            if metrics
        }
        write_json(metrics_path(pack), {"members": members}, outlives_crash=False)


def read_metrics(pack: Path | str) -> dict[int, Metrics]:
    """What members' programs have reported, by the member's number; pure reading.

    Raises:
        StateError: It is damaged or cannot be read.
    """
    return _parse_members(read_json(metrics_path(pack)))


def _read_start(directory: str) -> Iterator[Metrics]:
    """Of one start the results of each process; what makes no sense is left out."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except OSError:
        return
    for name in names[:_FILES_MOST]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            yield _parse(json.loads(read_bytes(f"{directory}/{name}", _BYTES_MOST)))


def _join(known: Metrics, found: Metrics) -> None:
    """Of one metric the newest value counts; a program that was started again goes on with it."""
    for name, new in found.items():
        old = known.get(name)
        if old is None:
            if len(known) < METRICS_MOST:
                known[name] = new
            continue
        newest = new if new.at >= old.at else old
        low = [one for one in (old.least, new.least) if one is not None]
        high = [one for one in (old.greatest, new.greatest) if one is not None]
        known[name] = ReportedMetric(
            newest.last,
            min(low, default=None),
            max(high, default=None),
            newest.source,
            newest.at,
        )


def _parse_members(value: Any) -> dict[int, Metrics]:
    found: dict[int, Metrics] = {}
    members = value.get("members") if isinstance(value, dict) else None
    for number, metrics in members.items() if isinstance(members, dict) else ():
        if number.isascii() and number.isdigit() and len(number) < 10:
            found[int(number)] = _parse(metrics)
    return found


def _parse(value: Any) -> Metrics:
    """The metrics of a JSON object; what is none is left out."""
    found: Metrics = {}
    for name, entry in list(value.items())[:METRICS_MOST] if isinstance(value, dict) else ():
        if not 0 < len(name) <= NAME_MOST or not isinstance(entry, list) or len(entry) != 5:
            continue
        *numbers, source, at = entry
        are_fine = all(one is None or _is_number(one) for one in numbers) and _is_number(at)
        if are_fine and source in SOURCES:
            last, least, greatest = (None if one is None else float(one) for one in numbers)
            found[name] = ReportedMetric(last, least, greatest, source, float(at))
    return found


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value) and abs(value) <= _LARGEST


@dataclass(frozen=True)
class OwnOutputs:
    """A member's output files.

    Attributes:
        files: Paths, each with its size when the member first wrote there: what is behind that is
            its own.
    """

    files: tuple[tuple[str, int], ...]


def keep_own_outputs(member: Path | str, files: Sequence[tuple[str, int]]) -> None:
    """Write down where a member's own output begins; a later start adds only files that are new.

    Args:
        member: The member's directory.
        files: Its output files, each with its size now.

    Raises:
        StateError: It cannot be written, or what was written before is damaged.
    """
    kept = read_own_outputs(member)
    known = {} if kept is None else dict(kept.files)
    added = dict(files) | known
    if added != known:
        write_json(f"{member}/{_OUTPUTS}", {"files": [list(one) for one in added.items()]})


def read_own_outputs(member: Path | str) -> OwnOutputs | None:
    """Where a member's own output begins; None where that was not written down.

    Raises:
        StateError: It is damaged or cannot be read.
    """
    return read_record(f"{member}/{_OUTPUTS}", OwnOutputs)
