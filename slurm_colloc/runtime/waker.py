"""What wakes a runner: signals, or the next thing that is due."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence

WOKEN_BY = (signal.SIGCHLD, signal.SIGURG)
"""A child's end; a request that csub, or a member, has left."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
"""What a batch script may be sent; a lone member is to get it."""


class Waker:
    """Turns signals into wake-ups.

    Args:
        on_terminate: Called for SIGTERM.
        on_signal: Called with the number of any signal of PASSED_ON.
    """

    def __init__(self, on_terminate: Callable[[], None], on_signal: Callable[[int], None]) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_terminate = on_terminate
        self._on_signal = on_signal

    def install(self) -> None:
        """Take the signals over."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in WOKEN_BY:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._on_terminate())
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: self._on_signal(received))

    def wait(self, timeout_s: float, due: list[float], readable: Sequence[int] = ()) -> None:
        """Wait for a signal, at most `timeout_s`, and not beyond anything that is due.

        Args:
            timeout_s: The longest wait.
            due: When something is to be done, on the monotonic clock.
            readable: Descriptors that end the wait when there is something to read.
        """
        if due:
            timeout_s = min(timeout_s, max(0.0, min(due) - time.monotonic()))
        select.select([self._read_end, *readable], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass
