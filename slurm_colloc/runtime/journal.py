"""The pack's log for people (events.jsonl): one writer, never read back."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import is_guest
from slurm_colloc.store.pack.member_home import name_member


class Journal:
    """Appends events; a log that cannot be written never stops a pack."""

    def __init__(self, pack: Path) -> None:
        self._path = pack / "events.jsonl"

    def write(self, event: str, **details: object) -> None:
        """Append one event with the time (seconds since the epoch)."""
        number = details.get("member")
        if isinstance(number, int) and is_guest(number):
            with contextlib.suppress(StateError):
                details.setdefault("name", str(name_member(self._path.parent, "", number)))
        line = json.dumps({"at": round(time.time(), 3), "event": event, **details}, default=str)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError:
            return
