"""Starting members as processes: as job steps through srun, or directly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


class Process:
    """A started member: the srun that waits for its step, or its wrapper itself."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: str | None,
    *,
    own_group: bool = True,
) -> Process:
    """Start a command in the background.

    Args:
        argv: Command and arguments.
        environment: Its environment.
        log: File for its output; None to share this process's output.
        own_group: Start it in a process group of its own.

    Raises:
        OSError: It cannot be started.
    """
    descriptor = None
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return Process(
            subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                process_group=0 if own_group else None,
            )
        )
    finally:
        if descriptor is not None:
            os.close(descriptor)
