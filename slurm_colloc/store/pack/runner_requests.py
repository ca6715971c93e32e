"""Requests to a running pack: one small file each in `control/`, taken by its runner."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import time
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import read_json, write_json


class Action(enum.StrEnum):
    """What may be asked of a runner for one member."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    SIGNAL = "signal"


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        action: What to do.
        number: To which member.
        signal: Which signal to send, for SIGNAL; 0 otherwise.
        steps_only: SIGNAL goes to the member's own job steps, not to its script.
        reason: By whom or why, for the member's state.
    """

    action: Action
    number: int
    signal: int = 0
    steps_only: bool = False
    reason: str = ""


def write_request(pack: Path | str, request: Request) -> str:
    """Leave a request for the runner; returns its path, which is gone once it was taken.

    Raises:
        StateError: It cannot be written.
    """
    # The time tells apart what one tick of the file system's clock does not.
    name = f"{time.time_ns():020d}-{request.action}-{os.urandom(4).hex()}.json"
    path = f"{pack}/control/{name}"
    write_json(path, dataclasses.asdict(request))
    return path


def take_requests(pack: Path | str) -> list[Request]:
    """Take all requests, oldest first; damaged ones are dropped."""
    requests = []
    entries = []
    for name in os.listdir(f"{pack}/control"):
        if name.endswith(".json"):
            path = f"{pack}/control/{name}"
            with contextlib.suppress(OSError):
                entries.append((os.stat(path).st_mtime_ns, path))
    for _, path in sorted(entries):
        with contextlib.suppress(StateError, KeyError, TypeError, ValueError):
            value = read_json(path)
            if value is not None:
                del value["schema"]
                requests.append(Request(**{**value, "action": Action(value["action"])}))
        with contextlib.suppress(OSError):
            os.unlink(path)
    return requests
