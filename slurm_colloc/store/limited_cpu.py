"""A bound on the CPU time of something that may take for ever: a regular expression of a user's."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class TooSlow(Exception):
    """It has used up its time."""


@contextlib.contextmanager
def limited_cpu(seconds: float) -> Iterator[None]:
    """Let the main thread use so much CPU time; Python's `re` looks for signals now and then.

    Raises:
        TooSlow: It was not enough.
    """

    def give_up(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
