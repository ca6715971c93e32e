"""`report/tracker-runs.jsonl`: the runs of MLflow and W&B that members themselves have opened.

The instrument notes them in the directory of a member's start, which is gone when the pack has
ended; the runner takes them into the pack's own directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.instrument.tracker_runs import FILE
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    make_directory,
    read_bytes,
    write_atomic,
)
from slurm_colloc.store.pack.sample_files import report_directory

_START = re.compile(r"([0-9]{4,})\.([0-9]+)", re.ASCII)
_RUN = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_LINES_MOST = 10_000
_BYTES_MOST = 1 << 20


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
        lines = [_write(run) for run in _parse(_read_kept(pack))]
    before = len(lines)
    for name in sorted(os.listdir(root)):
        match = _START.fullmatch(name)
        if match is None:
            continue
        with contextlib.suppress(OSError):
            data = read_bytes(f"{root}/{name}/{FILE}", _BYTES_MOST)
            lines += [_write(run) for run in _parse(data, int(match[1]), int(match[2]))]
    if len(lines) > before:
        make_directory(report_directory(pack))
        write_atomic(Path(report_directory(pack)) / FILE, "".join(lines[:_LINES_MOST]).encode())


def _write(run: TrackerRun) -> str:
    return json.dumps(run.__dict__, separators=(",", ":")) + "\n"


def read_tracker_runs(pack: Path) -> list[TrackerRun]:
    """The runs that members of a pack have opened, in order; none where none were noted."""
    try:
        return list(_parse(_read_kept(pack)))
    except (OSError, StateError):
        return []


def _read_kept(pack: Path) -> bytes:
    try:
        return read_bytes(Path(report_directory(pack)) / FILE, _BYTES_MOST)
    except FileNotFoundError:
        return b""


def _parse(
    data: bytes, member: int | None = None, start: int | None = None
) -> Iterator[TrackerRun]:
    for line in data.split(b"\n")[:_LINES_MOST]:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            value = json.loads(line)
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
