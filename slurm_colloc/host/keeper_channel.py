"""The keeper's end of the channel to its runner."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Any

from slurm_colloc.errors import CollocError
from slurm_colloc.host.keeper_messages import Event, decode, encode

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
        """What the runner has asked for and nobody has done yet."""
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
