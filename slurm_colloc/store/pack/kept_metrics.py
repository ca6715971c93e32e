"""What is kept of members' results, such as their loss.

`report/metrics.json` has what programs report themselves: they write it next to their steps, in a
directory that is gone when the pack has ended. `members/NNNN/outputs.json` says which part of its
output files is a member's own, so that results are read there and not in what lay there before.
All of it is a user's, and believed as little as any text that a program prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.instrument.results import METRICS_MOST, NAME_MOST, SUFFIX
from slurm_colloc.store.atomic_files import make_directory, read_bytes, write_json
from slurm_colloc.store.pack.sample_files import report_directory
from slurm_colloc.store.record_files import read_record

SOURCES = ("python", "mlflow", "wandb")
_START = re.compile(r"([0-9]{4,})\.([0-9]+)", re.ASCII)
_FILES_MOST = 256
"""Processes of one start that are looked at."""
_BYTES_MOST = 1 << 16
_OUTPUTS = "outputs.json"


@dataclass(frozen=True)
class ReportedMetric:
    """A metric as a member's program has reported it.

    Attributes:
        member: The member's number.
        name: The metric.
        source: Who said so, one of SOURCES.
        at: When, in seconds since the epoch.
        last: The newest value; None where that was not finite.
        least: The least that was finite; None for none.
        greatest: The greatest likewise.
    """

    member: int
    name: str
    source: str
    at: float
    last: float | None = None
    least: float | None = None
    greatest: float | None = None


@dataclass(frozen=True)
class KeptMetrics:
    """All metrics of a pack.

    Attributes:
        metrics: They.
    """

    metrics: tuple[ReportedMetric, ...]


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
    kept = read_metrics(pack)
    before = {number: dict(metrics) for number, metrics in kept.items()}
    for name in sorted(os.listdir(root)):
        match = _START.fullmatch(name)
        if match is None:
            continue
        for metrics in _read_start(f"{root}/{name}", int(match[1])):
            _join(kept.setdefault(int(match[1]), {}), metrics)
    if {number: metrics for number, metrics in kept.items() if metrics} != before:
        make_directory(Path(report_directory(pack)))
        entries = [dataclasses.asdict(one) for own in kept.values() for one in own.values()]
        write_json(metrics_path(pack), {"metrics": entries}, outlives_crash=False)


def read_metrics(pack: Path | str) -> dict[int, Metrics]:
    """What members' programs have reported, by the member's number.

    Raises:
        StateError: It is damaged or cannot be read.
    """
    record = read_record(metrics_path(pack), KeptMetrics)
    found: dict[int, Metrics] = {}
    for one in () if record is None else record.metrics:
        if _is_sound(one):
            found.setdefault(one.member, {})[one.name] = one
    return found


def _read_start(directory: str, member: int) -> Iterator[Metrics]:
    """Of one start the results of each process; what makes no sense is left out."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except OSError:
        return
    for name in names[:_FILES_MOST]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            yield _parse(json.loads(read_bytes(f"{directory}/{name}", _BYTES_MOST)), member)


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
        known[name] = dataclasses.replace(
            newest, least=min(low, default=None), greatest=max(high, default=None)
        )


def _parse(value: Any, member: int) -> Metrics:
    """The metrics of a JSON object of instrument.results; what is none is left out."""
    found: Metrics = {}
    for name, entry in list(value.items())[:METRICS_MOST] if isinstance(value, dict) else ():
        if isinstance(entry, list) and len(entry) == 5:
            last, least, greatest, source, at = entry
            one = ReportedMetric(member, name, source, at, last, least, greatest)
            if _is_sound(one):
                found[name] = one
    return found


def _is_sound(one: ReportedMetric) -> bool:
    """Whether it says what it can say: a program has written it."""
    numbers = (one.last, one.least, one.greatest)
    return (
        0 < len(one.name) <= NAME_MOST
        and one.source in SOURCES
        and _is_number(one.at)
        and all(number is None or _is_number(number) for number in numbers)
    )


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value)


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
