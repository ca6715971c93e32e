"""The results of members, such as their loss: printed, reported by Python, or logged to a tracker.

What a member prints is read when its pack is summed up, and only what lies behind the beginning of
its own output. Its expressions and its output are a user's: no more than so many bytes are read,
for no more than so much CPU time, and only files of the pack's owner.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.result_metrics import (
    METRICS_MOST,
    MetricExpression,
    parse_metric,
    parse_number,
)
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.report.summary.pack_run import PackRun
from slurm_colloc.store.atomic_files import open_regular
from slurm_colloc.store.limited_cpu import TooSlow, limited_cpu
from slurm_colloc.store.pack.kept_metrics import Metrics, read_metrics, read_own_outputs

PRINTED = "printed"
"""The source of what was found in a member's output."""
BYTES_MOST = 8 << 20
"""Of each output file, its end."""
PATIENCE_S = 0.5
"""CPU time that the output of one member may take."""

_LINE_END = re.compile(rb"[\r\n]+")
_LONGEST_LINE = 4096
_FILES_MOST = 8
_SHOWN_MOST = 40


def add_metrics(run: PackRun, members: Sequence[dict[str, Any]]) -> None:
    """Add `metrics` to members' parts of a summary, and notes on what was not found.

    Args:
        run: The pack.
        members: Their parts.
    """
    reported: dict[int, Metrics] = {}
    problem = ""
    try:
        reported = read_metrics(run.path)
    except StateError as error:
        problem = f"results that it has reported cannot be read: {error}"
    views = {member.number: member.view for member in run.members}
    owner = _find_owner(run.path)
    for member in members:
        notes: list[str] = [problem] if problem else []
        printed = _Printed()
        view = views[member["member"]]
        # A damaged spec.json is told of elsewhere.
        with contextlib.suppress(StateError):
            texts = view.spec.job.metrics
            if texts and member["started_at"] is not None:
                printed.read(view, texts, owner)
                notes += printed.notes
        found = {
            name: {"last": one.last, "least": one.least, "greatest": one.greatest,
                   "source": one.source}
            for name, one in reported.get(member["member"], {}).items()
        }  # fmt: skip
        # What the job itself has asked for comes first, and counts more.
        member["metrics"] = {**printed.found, **found, **printed.found}
        member["notes"] += notes


class _Printed:
    """What one member has printed."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._wrong: dict[str, str] = {}
        self._lines = 0

    def read(self, view: MemberView, texts: Sequence[str], owner: int | None) -> None:
        """Look for metrics in its output files.

        Args:
            view: The member.
            texts: What it asks for.
            owner: Whose files may be read; None for none.
        """
        expressions = list(_parse_all(texts))
        if threading.current_thread() is not threading.main_thread():
            # Nothing ends a regular expression in another.
            self.notes.append("what it printed is read only by csub itself: no printed metrics")
            return
        try:
            own = read_own_outputs(view.files.path)
            with limited_cpu(PATIENCE_S):
                for path, begin in () if own is None else own.files[:_FILES_MOST]:
                    self._search(path, begin, expressions, owner)
        except StateError as error:
            self.notes.append(f"no printed metrics: {error}")
        except TooSlow:
            self.notes.append(
                f"--metric took more than {PATIENCE_S:g} s on its output: printed metrics are "
                "those found until then"
            )
            return
        names = [name for one in expressions for name in one.names.values()]
        self.notes += [self._explain(name) for name in names if name not in self.found]

    def _explain(self, name: str) -> str:
        wrong = self._wrong.get(name)
        if wrong is None:
            lines = "1 line" if self._lines == 1 else f"{self._lines} lines"
            return f"{name} unknown: its --metric matched none of {lines} of output"
        return f"{name} unknown: its --metric found '{wrong}', which is not a number"

    def _search(
        self, path: str, begin: int, expressions: Sequence[MetricExpression], owner: int | None
    ) -> None:
        for line in _read_lines(path, begin, owner):
            self._lines += 1
            for expression in expressions:
                for name, text in expression.search(line):
                    self._note(name, text)

    def _note(self, name: str, text: str) -> None:
        value = parse_number(text)
        if value is None:
            self._wrong[name] = escape_controls(cut(text, _SHOWN_MOST))
            return
        last = value if math.isfinite(value) else None
        before = self.found.get(name)
        if before is None:
            before = {"last": None, "least": None, "greatest": None, "source": PRINTED}
            self.found[name] = before
        before["last"] = last
        if last is not None:
            least, greatest = before["least"], before["greatest"]
            before["least"] = last if least is None else min(least, last)
            before["greatest"] = last if greatest is None else max(greatest, last)


def _parse_all(texts: Sequence[str]) -> Iterator[MetricExpression]:
    for text in texts[:METRICS_MOST]:
        # They were checked when the job was submitted; since then they lay in a file of a user's.
        with contextlib.suppress(ValueError):
            yield parse_metric(text)


def _find_owner(pack: Path) -> int | None:
    try:
        return pack.stat().st_uid
    except OSError:
        return None


def _read_lines(path: str, begin: int, owner: int | None) -> Iterator[str]:
    """The lines of an output file from where the member's own begin, or of its end."""
    try:
        descriptor = open_regular(path)
    except (OSError, ValueError):
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid != owner:
            return
        # It was emptied since.
        begin = begin if 0 <= begin <= status.st_size else 0
        data = os.pread(descriptor, BYTES_MOST, max(begin, status.st_size - BYTES_MOST))
    except OSError:
        return
    finally:
        os.close(descriptor)
    for line in _LINE_END.split(data):
        if line:
            yield line[:_LONGEST_LINE].decode("utf-8", "replace")
