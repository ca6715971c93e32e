"""The process of one of Slurm's commands, which a site may have wrapped: its wait is bounded.

A wrapper's child may keep the pipes open, ignore signals, or leave its process group. So the
command has a process group of its own, which is killed at its time limit, and nothing here waits
for a pipe to be closed once the command has ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.1
"""How often it is looked whether the command has ended while its pipes are open."""

_DRAIN_S = 0.5
"""How long after the command's end what others write into its pipes is still taken."""

_KILLED_S = 2.0
"""How long a killed command may take to end; one that is stuck in the kernel is left to it."""


class CommandProcess:
    """A command that runs.

    Args:
        argv: The command and its arguments.
        environment: Its whole environment.
        program: The program's path; None for where PATH has it.
        inherited: Descriptors that it keeps open.
        directory: Where it runs; None for here.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        program: str | None = None,
        inherited: Sequence[int] = (),
        directory: str | None = None,
    ) -> None:
        self._child = subprocess.Popen(
            list(argv),
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=directory,
            pass_fds=tuple(inherited),
            # Ctrl-C reaches csub alone, and what the command has started ends with it.
            process_group=0,
        )
        self.stdout = b""
        self.stderr = b""

    def run(self, timeout_s: float) -> int | None:
        """Take what it writes until it has ended.

        Args:
            timeout_s: When it is killed, with all that is in its process group.

        Returns:
            Its exit status, negative for a signal; None where it was killed at its time limit.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._read(deadline)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(max(0.0, deadline - time.monotonic()))
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILLED_S)
            return None
        except BaseException:
            self.signal(signal.SIGTERM)
            raise
        finally:
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe is not None:
                    pipe.close()

    def signal(self, number: int) -> None:
        """Signal its process group, unless the command has ended."""
        # Until it is collected, no other process has its number.
        if self._child.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, number)

    def _read(self, deadline: float) -> None:
        """Read both pipes to their ends, or until shortly after the command's."""
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        taken = {self._child.stdout: bytearray(), self._child.stderr: bytearray()}
        with selectors.DefaultSelector() as selector:
            for pipe in taken:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
                ready = selector.select(min(left_s, _LOOK_S))
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    taken[key.fileobj] += chunk  # type: ignore[index]
                    if not chunk:
                        selector.unregister(key.fileobj)
                if not ready and self._child.poll() is not None:
                    deadline = min(deadline, time.monotonic() + _DRAIN_S)
        self.stdout, self.stderr = map(bytes, taken.values())
