"""Results that this process reports: a small file of its own, `PID.START.metrics`.

It is one JSON object, of each metric `[last, least, greatest, source, at]`; null stands for what is
not finite. What a program logs to MLflow or W&B is noted on the way; nothing of that is changed.
Nothing here raises and nothing is printed.

Also: which runs of an experiment tracker the program opens.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from . import layout
from .tally import find_rank, is_loader_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

SUFFIX = ".metrics"
METRICS_MOST = 64
NAME_MOST = 100
_SYSTEM = "system/"
"""How names begin of what MLflow, and csub itself, measure of the machine."""


class Results:
    """The results of this process.

    Args:
        directory: Where its file lies; None for results that are never noted.
    """

    def __init__(self, directory: str | None) -> None:
        self.directory = directory
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child does: what was noted so far is its parent's."""
        self._known: dict[str, list[Any]] = {}
        self._descriptor: int | None = None
        self._length = 0
        # A signal handler may report, too.
        self._lock = threading.RLock()

    def note(self, source: str, values: Mapping[Any, Any]) -> None:
        """Note the newest values of some metrics.

        Args:
            source: Who says so: `python`, `mlflow` or `wandb`.
            values: By name; what is no number is passed over.
        """
        if self.directory is None or find_rank()[0] > 0 or is_loader_worker():
            return
        at = round(time.time(), 3)
        with self._lock:
            has_changed = False
            for name, value in values.items():
                number = _read_number(value)
                if number is None or not isinstance(name, str) or not 0 < len(name) <= NAME_MOST:
                    continue
                before = self._known.get(name)
                if before is None and len(self._known) >= METRICS_MOST:
                    continue
                last = number if math.isfinite(number) else None
                known = [
                    v for v in (last, *([] if before is None else before[1:3])) if v is not None
                ]
                least, greatest = (min(known), max(known)) if known else (None, None)
                self._known[name] = [last, least, greatest, source, at]
                has_changed = True
            if has_changed:
                self._write(json.dumps(self._known, separators=(",", ":")).encode())

    def _write(self, text: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
        # One write, and blanks over what was longer: a reader sees a whole object.
        self._length = max(self._length, len(text))
        os.pwrite(self._descriptor, text.ljust(self._length), 0)

    def _open(self) -> int:
        with open("/proc/self/stat", "rb") as stat:
            start = layout.parse_start_ticks(stat.read())
        name = layout.build_name(os.getpid(), start)[: -len(layout.SUFFIX)] + SUFFIX
        path = os.path.join(str(self.directory), name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)


def _read_number(value: Any) -> float | None:
    """A number, or a tensor that holds one; None for texts, pictures, and anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value) if getattr(value, "ndim", None) == 0 else None


results = Results(os.environ.get(layout.VARIABLE) or None)
"""The results of this process."""

os.register_at_fork(after_in_child=results.reset)


def hook_mlflow_client(module: ModuleType) -> None:
    """Note what is logged by MLflow's client, which all its other ways go through."""

    # By their names, for most are given so.
    def read_one(run_id: Any = None, key: Any = None, value: Any = None, *_: Any, **__: Any) -> Any:
        del run_id
        return {key: value}

    def read_batch(run_id: Any = None, metrics: Any = (), *_: Any, **__: Any) -> Any:
        del run_id
        return {metric.key: metric.value for metric in metrics or ()}

    _note_logged(module.MlflowClient, "log_metric", "mlflow", read_one)
    _note_logged(module.MlflowClient, "log_batch", "mlflow", read_batch)


def hook_wandb_run(module: ModuleType) -> None:
    """Note what is logged to W&B."""
    _note_logged(module.Run, "log", "wandb", lambda data, *_, **__: _flatten(data))


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Names as W&B itself makes them of a mapping in a mapping."""
    found = {}
    for name, value in data.items():
        if isinstance(value, dict):
            found.update({f"{name}.{inner}": one for inner, one in value.items()})
        else:
            found[name] = value
    return found


def _note_logged(
    owner: Any, name: str, source: str, read: Callable[..., Mapping[str, Any]]
) -> None:
    def note(_done: Any, _self: Any, *args: Any, **kwargs: Any) -> None:
        values = read(*args, **kwargs)
        kept = {key: v for key, v in values.items() if not str(key).startswith(_SYSTEM)}
        results.note(source, kept)

    _wrap(owner, name, note)


def _wrap(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Have what a tracker's function returns noted, with its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call_and_note(*args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        try:
            note(done, *args, **kwargs)
        except Exception:
            # A tracker that is built differently; the program is not to notice.
            pass
        return done

    setattr(owner, name, call_and_note)


# ---- Which runs of an experiment tracker the program opens, so that csub can add to them ---------
#
# A line of JSON for each, in the directory of the member's start. Nothing of the run is changed.

FILE = "tracker-runs.jsonl"
_LINES_MOST = 64
_LENGTH_MOST = 2000
_noted: set[tuple[str, str]] = set()


def hook_mlflow(module: ModuleType) -> None:
    """Note runs of mlflow.start_run, by itself or by autologging."""

    def describe(run: Any) -> dict[str, Any]:
        uri = sys.modules["mlflow"].get_tracking_uri()
        return {"run": run.info.run_id, "uri": uri}

    _wrap(module, "start_run", lambda run, *_, **__: _note_run("mlflow", describe(run)))


def hook_wandb(module: ModuleType) -> None:
    """Note runs of wandb.init."""

    def describe(run: Any) -> dict[str, Any]:
        settings = run.settings
        return {
            "run": run.id,
            "project": run.project or "",
            "entity": run.entity or "",
            "mode": settings.mode or "",
            "uri": settings.base_url or "",
            "root": settings.root_dir or "",
        }

    _wrap(module, "init", lambda run, *_, **__: _note_run("wandb", describe(run)))


def _note_run(tracker: str, value: dict[str, Any]) -> None:
    directory = os.environ.get(layout.VARIABLE)
    key = (tracker, str(value["run"]))
    if not directory or key in _noted or len(_noted) >= _LINES_MOST:
        return
    _noted.add(key)
    line = json.dumps({"tracker": tracker, "directory": os.getcwd(), **value})
    if len(line) > _LENGTH_MOST:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(os.path.join(directory, FILE), flags, 0o600)
    try:
        os.write(descriptor, (line + "\n").encode())
    finally:
        os.close(descriptor)
