"""What a program can switch off and on of csub's measuring of itself, from inside a pack."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSTRUMENT = "_slurm_colloc_instrument"
MONITOR = b"slurm_colloc.monitor"


class Counting:
    """The hooks by which csub's instrument counts steps.

    Raises:
        RuntimeError: There are none: the program is not counted.
    """

    def __init__(self) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        self._places: list[dict[int, Any]] = [
            module._global_optimizer_pre_hooks,
            module._global_optimizer_post_hooks,
        ]
        self._ours = [
            {key: hook for key, hook in place.items() if hook.__module__.startswith(INSTRUMENT)}
            for place in self._places
        ]
        if not all(self._ours):
            raise RuntimeError("csub's instrument is not in this process")

    def switch(self, *, on: bool) -> None:
        """Count from now on, or not."""
        for place, ours in zip(self._places, self._ours, strict=True):
            for key, hook in ours.items():
                if on:
                    place[key] = hook
                else:
                    place.pop(key, None)


@dataclass
class Monitor:
    """The monitor of this program's pack.

    Attributes:
        pid: Its pid.
        pack: The pack's directory.
    """

    pid: int
    pack: Path
    is_stopped: bool = False

    def switch(self, *, on: bool) -> None:
        """Let it work from now on, or stand still."""
        if on is self.is_stopped:
            os.kill(self.pid, signal.SIGCONT if on else signal.SIGSTOP)
            self.is_stopped = not on

    def pin(self, core: int) -> None:
        """Keep all its threads on one core."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def find_monitor() -> Monitor | None:
    """The only monitor that this user runs."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            owner = entry.stat().st_uid
        except OSError:
            continue
        if MONITOR in words and owner == os.geteuid():
            pack = Path(os.fsdecode(words[words.index(MONITOR) + 1]))
            # Its first record says that it has begun to sample.
            if (pack / "report" / "monitor.json").exists():
                return Monitor(int(entry.name), pack)
    return None
