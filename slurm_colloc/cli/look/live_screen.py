"""A screen of a terminal that is drawn again and again, scrolled by keys and left with `q`."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self

_ENTER = "\x1b[?1049h\x1b[?25l"
"""The alternate screen, without a cursor."""
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE, _CLEAR_REST = "\x1b[K", "\x1b[J"
_RESET = "\x1b[0m"

_QUIT = frozenset({b"q", b"Q", b"\x1b"})
_KEYS = {
    b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1,
    b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1, b"\r": 1, b"\n": 1,
}  # fmt: skip
_PAGE_KEYS = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1}
_TOP_KEYS = frozenset({b"g", b"\x1b[H", b"\x1b[1~"})
_END_KEYS = frozenset({b"G", b"\x1b[F", b"\x1b[4~"})


def scroll(offset: int, key: bytes, lines: int, height: int) -> int:
    """Where a page begins after a key.

    Args:
        offset: The line at which it begins now.
        key: What was pressed.
        lines: How many there are.
        height: How many fit.
    """
    if key in _TOP_KEYS:
        offset = 0
    elif key in _END_KEYS:
        offset = lines
    else:
        offset += _KEYS.get(key, 0) + _PAGE_KEYS.get(key, 0) * max(1, height - 1)
    return max(0, min(offset, lines - height))


class LiveScreen:
    """The terminal's other screen, for the time of a `with`.

    The old one comes back whatever ends it.

    Keys are read where standard input is a terminal.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._keyboard: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            self._keyboard = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        _write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)
        # A terminal that is gone needs none of it.
        with contextlib.suppress(OSError):
            _write(_RESET + _LEAVE)

    def show(self, text: str, seconds: float) -> bool:
        """Show a text for some time; its first line stays where the rest is scrolled.

        Args:
            text: The lines, harmless already.
            seconds: For how long.

        Returns:
            True where the user wants to leave.
        """
        until = time.monotonic() + seconds
        head, *body = text.splitlines() or [""]
        while True:
            height = self._draw(head, body)
            key = self._wait(until - time.monotonic())
            if key is None:
                return False
            if key in _QUIT:
                return True
            self._offset = scroll(self._offset, key, len(body), height)

    def _draw(self, head: str, body: list[str]) -> int:
        """Draw the page; how many lines of the body fit."""
        height = max(1, shutil.get_terminal_size().lines - 2)
        self._offset = max(0, min(self._offset, len(body) - height))
        page = body[self._offset : self._offset + height]
        hint = "q quits" if self._keyboard is not None else "Ctrl-C quits"
        if len(body) > height:
            last = self._offset + len(page)
            hint = f"{hint}, arrows and Page keys scroll: {self._offset + 1}-{last} of {len(body)}"
        lines = [head, *page, hint]
        shown = f"{_RESET}{_CLEAR_LINE}\r\n".join(lines)
        _write(f"{_HOME}{shown}{_RESET}{_CLEAR_LINE}{_CLEAR_REST}")
        return height

    def _wait(self, seconds: float) -> bytes | None:
        """The next key; None where none was pressed in time."""
        if self._keyboard is None:
            time.sleep(max(0.0, seconds))
            return None
        if not select.select([self._keyboard], [], [], max(0.0, seconds))[0]:
            return None
        # An arrow comes as several bytes in one piece. An end of input is no key.
        key = os.read(self._keyboard, 16)
        if not key:
            self._keyboard = None
            return None
        return key


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
