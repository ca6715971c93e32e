"""The pack's log for people (events.jsonl): one writer, never read back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Journal:
    """Appends events; a log that cannot be written never stops a pack."""

    def __init__(self, pack: Path) -> None:
        self._path = pack / "events.jsonl"

    def write(self, event: str, **details: object) -> None:
        """Append one event with the time (seconds since the epoch)."""
        line = json.dumps({"at": round(time.time(), 3), "event": event, **details}, default=str)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError:
            return
