"""What Slurm's questions answer about a member, in Slurm's own forms; and how they are asked."""

from __future__ import annotations

import os
import sys
import time

from slurm_colloc.runtime.programs.own_member import OwnMember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# SIGPIPE and SIGXFSZ, here by number: the module signal takes longer to import than all others.
_IGNORED_BY_PYTHON = (13, 25)
_STANDARD = "%Y-%m-%dT%H:%M:%S"


class OwnAnswers:
    """The member's values.

    Args:
        member: The member.
        now: The time, in seconds since the epoch.
        pack_left_s: How long the pack may still run; None for no limit, or where it is not known.
        time_format: SLURM_TIME_FORMAT, empty where it is not set.
    """

    def __init__(
        self,
        member: OwnMember,
        now: float,
        pack_left_s: int | None = None,
        time_format: str = "",
    ) -> None:
        self._values = values = member.values
        self._format = _STANDARD if time_format in ("", "standard") else time_format
        self.started_at = int(values["started_at"])
        self.used_s = max(0, int(now) - self.started_at)
        limit = values.get("wall_limit_s")
        self.limit_s = None if limit is None else int(limit)
        left_s = None if self.limit_s is None else max(0, self.limit_s - self.used_s)
        if left_s is not None and pack_left_s is not None:
            # The pack may end before the member's own limit does.
            left_s = min(left_s, pack_left_s)
        self.left_s = left_s
        self.ends_at = None if left_s is None else int(now) + left_s

    def text(self, name: str) -> str | None:
        """One of what the member's file says; None where it does not."""
        return self._values.get(name)

    @property
    def host_memory(self) -> str | None:
        """Its limit as Slurm writes it: `1500M`, `2G`; None for no limit of its own."""
        text = self._values.get("host_memory_mb")
        if text is None:
            return None
        amount, unit = int(text), "M"
        for larger in ("G", "T"):
            if amount and amount % 1024 == 0:
                amount, unit = amount // 1024, larger
        return f"{amount}{unit}"

    def moment(self, at: int | None) -> str | None:
        """A moment as Slurm writes it; None where it is not known, or asked for as `relative`."""
        if at is None or "%" not in self._format:
            return None
        return time.strftime(self._format, time.localtime(at))

    def task(self, part: str) -> str | None:
        """`job`, `index` or `whole` of its place in the user's array; None where it has none."""
        whole = self._values.get("task_id")
        if whole is None:
            return None
        job, _, index = whole.partition("_")
        return {"job": job, "index": index, "whole": whole}[part]


def format_span(seconds: int | None) -> str | None:
    """`1-02:03:04`, `2:03:04` or `3:04`, as squeue writes it (`secs2time_str`)."""
    if seconds is None:
        return None
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def parse_span(text: str) -> int | None:
    """The inverse; None for `UNLIMITED`, `NOT_SET` and anything else that is no time."""
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds + int(days or 0) * 86400


def spawn(
    real: str,
    call: Sequence[str],
    environment: Mapping[str, str],
    actions: Sequence[tuple[int, ...]] = (),
) -> int:
    """Start a command; its process id. It gets the signals that Python ignores."""
    return os.posix_spawn(
        real, list(call), dict(environment), file_actions=actions, setsigdef=_IGNORED_BY_PYTHON
    )


def read_output(
    real: str, call: Sequence[str], environment: Mapping[str, str], *, is_silent: bool = False
) -> tuple[int, str]:
    """Run a command; its exit status and what it wrote to standard output.

    Args:
        real: Its path.
        call: Its words.
        environment: Its environment.
        is_silent: What it writes to standard error goes nowhere, not where this process's goes.
    """
    reading, writing = os.pipe()
    # The other end closes by itself when the command is executed.
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    if is_silent:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions.append((os.POSIX_SPAWN_DUP2, nowhere, 2))
    pid = spawn(real, call, environment, actions)
    if is_silent:
        os.close(nowhere)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def write_output(text: str) -> bool:
    """Write text to standard output, byte for byte; False where that cannot be done.

    A reader that has gone ends this process by SIGPIPE, as it would end the real command.
    """
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        import signal

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)  # noqa: TID251 - itself
        return False
    except OSError as error:
        sys.stderr.write(f"csub: error: cannot write to standard output: {error.strerror}\n")
        return False
    return True
