"""Each step of a runner by itself: what goes wrong in one leaves the others, and members, alone.

Also: the pack's log for people (events.jsonl): one writer, never read back.

A file system that does not answer for a moment, a damaged file or a fault in csub itself must not
end the members that run. What goes wrong is said once, and the step is tried again in later turns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.model.member import is_guest
from slurm_colloc.store.member_states import name_member

# ---- The pack's log for people (events.jsonl): one writer, never read back -----------------------


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


# ----
# Each step of a runner by itself: what goes wrong in one leaves the others, and members, alone.

GIVE_UP_AFTER_S = 300.0
"""How long a step that fails is tried again, before the runner does without it."""

RETRY_S = 1.0
"""How long is waited before what has failed is tried again."""

TOLD_OVER_S = 10.0
"""After trouble of this length its end is worth a line as well."""

_PASSING = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.ECOMM, errno.ECONNABORTED, errno.ECONNREFUSED,
        errno.ECONNRESET, errno.EDQUOT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINTR,
        errno.EIO, errno.EKEYEXPIRED, errno.EMFILE, errno.ENETDOWN, errno.ENETUNREACH,
        errno.ENFILE, errno.ENODEV, errno.ENOLCK, errno.ENOLINK, errno.ENOMEM, errno.ENOSPC,
        errno.ENOTCONN, errno.EPROTO, errno.EREMOTEIO, errno.EROFS, errno.ESHUTDOWN,
        errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip

_T = TypeVar("_T")

GiveUp = Callable[[Exception], bool]
"""Told the error of a step that is given up; True where that settles it."""


class DeliberateEnd(CollocError):
    """The attempt ends on purpose; no step is tried again after it."""


class GivenUp(DeliberateEnd):
    """A step without which a pack cannot go on has failed for too long, and no member runs.

    Args:
        step: What was to be done.
        error: What came of it at last.
    """

    def __init__(self, step: str, error: Exception) -> None:
        super().__init__(f"{step} failed for {GIVE_UP_AFTER_S / 60:g} minutes: {error}")
        self.error = error


def is_passing(error: BaseException) -> bool:
    """Whether an error, or what has caused it, is one of a file system, and may pass by itself.

    That nothing is there (ENOENT), or something else than expected, is no such error.
    """
    return _find_passing(error) is not None


def _find_passing(error: BaseException) -> int | None:
    """The number of such an error; None where it is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _PASSING:
            return seen.errno
        seen = seen.__cause__
    return None


def insist(what: str, step: Callable[[], _T], clock: Callable[[], float] = time.monotonic) -> _T:
    """Do what a runner cannot begin without, again and again where the file system fails.

    Args:
        what: What is done, for people.
        step: Does it; it may be called several times.
        clock: Seconds that only grow.

    Raises:
        Exception: What came of it, where that does not pass, or not in time.
    """
    deadline = clock() + GIVE_UP_AFTER_S
    is_said = False
    while True:
        try:
            return step()
        except DeliberateEnd:
            raise
        except Exception as error:
            if not is_passing(error) or clock() >= deadline:
                raise
            if not is_said:
                is_said = True
                _say(f"csub: error: {what}: {error}; it is tried again\n")
            time.sleep(RETRY_S)


class GuardedSteps:
    """Runs steps.

    Args:
        journal: The pack's log.
        clock: Seconds that only grow.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._since: dict[str, float] = {}
        self._said: set[tuple[str, str | int]] = set()

    @property
    def has_trouble(self) -> bool:
        """A step has failed, and has not been done since."""
        return bool(self._since)

    def run(self, name: str, step: Callable[[], _T], give_up: GiveUp | None = None) -> _T | None:
        """Run a step.

        Args:
            name: What it does, for people.
            step: The step; where it fails, another turn calls it again.
            give_up: Called, at each turn, once it has failed for GIVE_UP_AFTER_S; without it the
                step is tried for as long as the attempt lasts.

        Returns:
            What it returns; None where it failed.

        Raises:
            DeliberateEnd: The attempt ends.
        """
        try:
            found = step()
        except DeliberateEnd:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, members go on
            if self.note(name, error) and give_up is not None:
                self._give_up(name, error, give_up)
            return None
        self.forget(name)
        return found

    def _give_up(self, name: str, error: Exception, give_up: GiveUp) -> None:
        try:
            if give_up(error):
                self._journal.write("given_up", step=name, error=_describe(error))
                self.forget(name)
        except DeliberateEnd:
            raise
        except Exception as problem:  # noqa: BLE001 - likewise
            self._tell(name, problem)

    def note(self, name: str, error: Exception) -> bool:
        """Note that a step has failed; True once that has gone on for too long."""
        since = self._since.setdefault(name, self._clock())
        self._tell(name, error)
        return self._clock() - since >= GIVE_UP_AFTER_S

    def forget(self, name: str) -> None:
        """Note that a step is done, or needed no more."""
        since = self._since.pop(name, None)
        if since is not None and (lasted_s := self._clock() - since) >= TOLD_OVER_S:
            self._journal.write("trouble_over", step=name, seconds=round(lasted_s))

    def _tell(self, name: str, error: Exception) -> None:
        """Say it once, however often it comes again, and for whichever file."""
        text = _describe(error)
        kind = _find_passing(error) or text
        if (name, kind) in self._said:
            return
        self._said.add((name, kind))
        self._journal.write("trouble", step=name, error=text)
        # What csub has foreseen says all; of what it has not, one wants to know where.
        trace = "" if isinstance(error, OSError | CollocError) else "".join(
            traceback.format_exception(error)
        )  # fmt: skip
        _say(f"csub: error: {name}: {text}; it is tried again\n{trace}")


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, OSError | CollocError) else repr(error)


def _say(text: str) -> None:
    """Write to the pack's log; that it cannot be written ends nothing."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return
