"""Where a pack's samples lie, what their tables hold, and how their files are named; no pyarrow.

Also: what is kept of members' results, such as their loss; `report/mail.txt`: the text of the mail
about a whole array, from who makes the summary; `report/tracker-runs.jsonl`: the runs of MLflow and
W&B that members themselves have opened.

While a pack runs its samples are in pieces, `gpu.000001.parquet` and on, one each ten seconds. Many
pieces become one, `gpu.000001-000060.parquet`, and at the end one file holds all: `gpu.parquet`,
which counts as piece 0. A file stands for every number of its range, so whatever moment a monitor
was killed at, `list_sample_files` names each row exactly once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.instrument.results import FILE, METRICS_MOST, NAME_MOST, SUFFIX
from slurm_colloc.model.late_definitions import asdict, dataclass, late_pattern, replace
from slurm_colloc.model.records import is_number
from slurm_colloc.store.atomic_files import (
    SCHEMA,
    explain_os_errors,
    make_directory,
    read_bytes,
    read_record,
    write_atomic,
    write_json,
)

Columns = tuple[tuple[str, str], ...]

GPU_COLUMNS: Columns = (
    ("at", "float64"),
    ("attempt", "int32"),
    ("uuid", "string"),
    ("sm_active", "float32"),
    ("sm_occupancy", "float32"),
    ("tensor_active", "float32"),
    ("dram_active", "float32"),
    ("engine_active", "float32"),
    ("utilization", "float32"),
    ("pcie_tx_mib_s", "float32"),
    ("pcie_rx_mib_s", "float32"),
    ("nvlink_tx_mib_s", "float32"),
    ("nvlink_rx_mib_s", "float32"),
    ("gpu_memory_mb", "float32"),
    ("power_w", "float32"),
    ("power_limit_w", "float32"),
    ("energy_j", "float64"),
    ("sm_clock_mhz", "int32"),
    ("memory_clock_mhz", "int32"),
    ("temperature_c", "int32"),
    ("throttle_power_s", "float64"),
    ("throttle_thermal_s", "float64"),
    ("throttle_brake_s", "float64"),
)
"""One row per GPU and tick. `at` in seconds since the epoch; active parts 0 to 1; counters
(`energy_j`, `throttle_*_s`) since the driver was loaded."""

MEMBER_COLUMNS: Columns = (
    ("at", "float64"),
    ("attempt", "int32"),
    ("member", "int32"),
    ("start", "int32"),
    ("gpu_memory_mb", "float32"),
    ("processes", "int32"),
    ("threads", "int32"),
    ("cpu_s", "float64"),
    ("host_memory_mb", "float32"),
    ("read_bytes", "int64"),
    ("written_bytes", "int64"),
    ("steps", "int64"),
    ("skipped", "int64"),
    ("samples", "int64"),
    ("batches", "int64"),
    ("wait_s", "float64"),
    ("trainers", "int32"),
    ("progress", "string"),
    ("first_step_at", "float64"),
    ("last_step_at", "float64"),
    ("gpu_memory_reserved_mb", "float32"),
    ("gpu_memory_reserved_peak_mb", "float32"),
)
"""One row per running member and tick, and one when it has ended. `cpu_s`, `read_bytes`,
`written_bytes` and all from `steps` to `wait_s` are counters of that start. `wait_s` is a sum over
processes; as a share of time it is divided by `trainers`, those that make steps. The last
two are what PyTorch's allocator says of itself, without contexts."""

TABLES = {"gpu": GPU_COLUMNS, "members": MEMBER_COLUMNS}

GPU_METRICS = tuple(name for name, _ in GPU_COLUMNS[3:])
"""What is measured of a GPU: all columns but those that say when and which."""

_NAME = late_pattern(
    r"(?P<table>[a-z]+)(?:\.(?P<first>[0-9]{6,})(?:-(?P<last>[0-9]{6,}))?)?\.parquet"
)


@dataclass(frozen=True, order=True)
class Piece:
    """A file of samples, and the numbers of the pieces it stands for.

    Args:
        first: The first of them; 0 is the file of all that has ended.
        last: The last.
        name: The file's name.
    """

    first: int
    last: int
    name: str


def report_directory(pack: str | os.PathLike[str]) -> str:
    """Where the monitor writes."""
    return f"{os.fspath(pack)}/report"


def latest_path(pack: str | os.PathLike[str]) -> str:
    """The newest sample, for the runner and for people who watch."""
    return f"{os.fspath(pack)}/latest.json"


def monitor_path(pack: str | os.PathLike[str]) -> str:
    """What the monitor says of itself: its gaps, its cost, what it could read."""
    return f"{report_directory(pack)}/monitor.json"


def format_piece(table: str, first: int, last: int) -> str:
    """Name the file of a range of pieces."""
    if last == 0:
        return f"{table}.parquet"
    if first == last:
        return f"{table}.{first:06d}.parquet"
    return f"{table}.{first:06d}-{last:06d}.parquet"


def parse_piece(name: str) -> tuple[str, Piece] | None:
    """Read a file's name; None where it is none of a table here."""
    match = _NAME.fullmatch(name)
    if match is None or match["table"] not in TABLES:
        return None
    first = int(match["first"] or 0)
    return match["table"], Piece(first, int(match["last"] or first), name)


def choose_pieces(names: Iterable[str], table: str) -> tuple[list[Piece], list[Piece]]:
    """Tell the files that hold a table from those whose rows are in another one already; pure.

    Args:
        names: Names of files; others than samples do not matter.
        table: `gpu` or `members`.

    Returns:
        Files to read, in order of time, and files that may go.
    """
    parsed = (parse_piece(name) for name in names)
    pieces = sorted(found[1] for found in parsed if found is not None and found[0] == table)
    # The widest first among those with the same beginning, so that it is met before its parts.
    pieces.sort(key=lambda piece: (piece.first, -piece.last))
    kept: list[Piece] = []
    spare: list[Piece] = []
    for piece in pieces:
        if kept and piece.last <= kept[-1].last:
            spare.append(piece)
        else:
            kept.append(piece)
    return kept, spare


def list_sample_files(pack: str | os.PathLike[str], table: str) -> list[str]:
    """The files that together hold a pack's table, each row once, in order of time.

    Args:
        pack: The pack's directory.
        table: `gpu` or `members`.
    """
    directory = report_directory(pack)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{directory}/{piece.name}" for piece in choose_pieces(names, table)[0]]


# ---- What is kept of members' results, such as their loss ----------------------------------------
#
# `report/metrics.json` has what programs report themselves: they write it next to their steps, in a
# directory that is gone when the pack has ended. `members/NNNN/outputs.json` says which part of its
# output files is a member's own, so that results are read there and not in what lay there before.
# All of it is a user's, and believed as little as any text that a program prints.

SOURCES = ("python", "mlflow", "wandb")
_START = late_pattern(r"(?a)([0-9]{4,})\.([0-9]+)")
_FILES_MOST = 256
"""Processes of one start that are looked at."""
_METRICS_BYTES_MOST = 1 << 16
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
        entries = [asdict(one) for own in kept.values() for one in own.values()]
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
            text = read_bytes(f"{directory}/{name}", _METRICS_BYTES_MOST)
            yield _parse_metrics(json.loads(text), member)


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
        known[name] = replace(
            newest, least=min(low, default=None), greatest=max(high, default=None)
        )


def _parse_metrics(value: Any, member: int) -> Metrics:
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
        and is_number(one.at)
        and all(number is None or is_number(number) for number in numbers)
    )


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


# ---- `report/mail.txt`: the text of the mail about a whole array, from who makes the summary -----

_MAIL_BYTES_MOST = 1 << 20


def mail_text_path(pack: Path) -> Path:
    """Where it lies."""
    return Path(report_directory(pack)) / "mail.txt"


def write_mail_text(pack: Path, text: str) -> None:
    """Write it, for the runner that waits for the summary.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(report_directory(pack))
    write_atomic(mail_text_path(pack), text.encode("utf-8", "replace"), outlives_crash=False)


def read_mail_text(pack: Path) -> str:
    """What was written; empty where nothing was, or it cannot be read."""
    try:
        return read_bytes(mail_text_path(pack), _MAIL_BYTES_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


# ----
# `report/tracker-runs.jsonl`: the runs of MLflow and W&B that members themselves have opened.
#
# The instrument notes them in the directory of a member's start, which is gone when the pack has
# ended; the runner takes them into the pack's own directory.

_RUN = late_pattern(r"(?a)[A-Za-z0-9_.-]{1,128}")
_LINES_MOST = 10_000
_RUNS_BYTES_MOST = 1 << 20


@dataclass(frozen=True)
class TrackerRun:
    """A run that a member has opened.

    Attributes:
        member: The member's number.
        start: Of its starts, the one that did.
        tracker: `mlflow` or `wandb`.
        run: The run's id.
        directory: The working directory of the program, for paths that are relative to it.
        uri: The tracking server; empty where not known.
        project: W&B's project.
        entity: W&B's entity.
        mode: W&B's mode, `online` or `offline`.
        root: Where W&B keeps its files.
    """

    member: int
    start: int
    tracker: str
    run: str
    directory: str
    uri: str = ""
    project: str = ""
    entity: str = ""
    mode: str = ""
    root: str = ""


def keep_tracker_runs(root: str, pack: Path) -> None:
    """Take what members' starts have noted into the pack; what cannot be read is left out.

    Args:
        root: Where each start of a member has a directory, `0003.1`.
        pack: The pack's directory.

    Raises:
        StateError: It cannot be written, or what was kept before not be read.
    """
    # What cannot be read now is not written over.
    with explain_os_errors("read", report_directory(pack)):
        lines = [_write(run) for run in _parse_runs(_read_kept(pack))]
    before = len(lines)
    for name in sorted(os.listdir(root)):
        match = _START.fullmatch(name)
        if match is None:
            continue
        with contextlib.suppress(OSError):
            data = read_bytes(f"{root}/{name}/{FILE}", _RUNS_BYTES_MOST)
            lines += [_write(run) for run in _parse_runs(data, int(match[1]), int(match[2]))]
    if len(lines) > before:
        make_directory(report_directory(pack))
        write_atomic(Path(report_directory(pack)) / FILE, "".join(lines[:_LINES_MOST]).encode())


def _write(run: TrackerRun) -> str:
    return json.dumps({"schema": SCHEMA, **run.__dict__}, separators=(",", ":")) + "\n"


def read_tracker_runs(pack: Path) -> list[TrackerRun]:
    """The runs that members of a pack have opened, in order; none where none were noted."""
    try:
        return list(_parse_runs(_read_kept(pack)))
    except (OSError, StateError):
        return []


def _read_kept(pack: Path) -> bytes:
    try:
        return read_bytes(Path(report_directory(pack)) / FILE, _RUNS_BYTES_MOST)
    except FileNotFoundError:
        return b""


def _parse_runs(
    data: bytes, member: int | None = None, start: int | None = None
) -> Iterator[TrackerRun]:
    for line in data.split(b"\n")[:_LINES_MOST]:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            value = json.loads(line)
            # What a member's own Python has noted has none; of another version nothing is known.
            if value.get("schema", SCHEMA) != SCHEMA:
                continue
            texts = {name: value.get(name, "") for name in ("uri", "project", "entity", "mode",
                                                            "root", "directory")}  # fmt: skip
            is_text = all(isinstance(text, str) for text in texts.values())
            if value["tracker"] in ("mlflow", "wandb") and _RUN.fullmatch(value["run"]) and is_text:
                yield TrackerRun(
                    member=int(value["member"]) if member is None else member,
                    start=int(value["start"]) if start is None else start,
                    tracker=value["tracker"],
                    run=value["run"],
                    **texts,
                )
