"""Notes which runs of an experiment tracker the program opens, so that csub can add to them.

A line of JSON for each, in the directory of the member's start. Nothing of the run is changed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from . import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

FILE = "tracker-runs.jsonl"
_LINES_MOST = 64
_LENGTH_MOST = 2000
_noted: set[tuple[str, str]] = set()


def hook_mlflow(module: ModuleType) -> None:
    """Note runs of mlflow.start_run, by itself or by autologging."""

    def describe(run: Any) -> dict[str, Any]:
        uri = sys.modules["mlflow"].get_tracking_uri()
        return {"run": run.info.run_id, "uri": uri}

    _wrap(module, "start_run", "mlflow", describe)


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

    _wrap(module, "init", "wandb", describe)


def _wrap(
    module: ModuleType, name: str, tracker: str, describe: Callable[[Any], dict[str, Any]]
) -> None:
    begin = getattr(module, name)

    @functools.wraps(begin)
    def begin_and_note(*args: Any, **kwargs: Any) -> Any:
        run = begin(*args, **kwargs)
        try:
            _note(tracker, describe(run))
        except Exception:
            # A tracker that is built differently; the program is not to notice.
            pass
        return run

    setattr(module, name, begin_and_note)


def _note(tracker: str, value: dict[str, Any]) -> None:
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
