"""The keeper's process: what Slurm's signals, orphans and standard streams are to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from typing import Any

from slurm_colloc.errors import CollocError
from slurm_colloc.host.keeper.keeper_messages import Event, decode, encode
from slurm_colloc.host.system.child_programs import Child

_IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
)
_PR_SET_CHILD_SUBREAPER = 36


def take_over() -> tuple[int, int]:
    """Make this process one that outlives its runner and reaps what the daemon leaves.

    Returns:
        Descriptors of what were its standard input and output, for the channel to the runner.
    """
    os.umask(0o077)
    os.chdir("/")
    for number in _IGNORED:
        # A function, not SIG_IGN: the daemon and its server must not inherit it.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The channels get other numbers than standard streams have: children must not inherit them.
    stdin, stdout = (os.dup(number) for number in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    return stdin, stdout


def collect_orphans(child: Child | None) -> None:
    """Collect servers whose daemon has died: they come to the keeper, which is their reaper.

    Args:
        child: The daemon, whose exit status is kept; None where it is no child of this process.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            if child is not None and found.si_pid == child.pid:
                # Its status is needed.
                child.poll()
            else:
                os.waitpid(found.si_pid, os.WNOHANG)


_READ_BYTES = 65536


class Channel:
    """Requests in, events out.

    Args:
        requests: Descriptor of the runner's requests.
        events: Descriptor for events.
    """

    def __init__(self, requests: int, events: int) -> None:
        self._in = requests
        self._out = events
        self._partial = b""
        self.requests: list[dict[str, Any]] = []
        """What the runner has asked for and was not done yet."""
        self.is_abandoned = False
        """The runner has gone."""

    def listen(self, timeout_s: float) -> None:
        """Wait for a request, or for the runner's end."""
        if self.is_abandoned:
            time.sleep(timeout_s)
            return
        poll = select.poll()
        poll.register(self._in, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return
        data = os.read(self._in, _READ_BYTES)
        self.is_abandoned = not data
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(CollocError):
                request = decode(line)
                if isinstance(request, dict):
                    self.requests.append(request)

    def say(self, event: Event) -> None:
        """Tell the runner, if it is there."""
        data = encode(event)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._out, data) :]

    def close_requests(self) -> None:
        """In a forked child: leave the requests to its parent."""
        os.close(self._in)
