"""What can go wrong, as exceptions that carry a sentence for the user and an exit code.

    CollocError            1   anything below; never raised itself
      UsageProblem         2   the command line, a script or a directive is wrong
      NoPackPossible       3   well-formed, but no allocation can hold it
      SlurmError           4   a Slurm command failed
        SlurmRefused       4   Slurm looked at the request and said no
        SlurmUnreachable   4   no Slurm here, or its controller does not answer
      NodeError            5   the node could not do what the pack needs
      StateError           6   the state directory cannot be read or written
      NotFound             7   no such pack or member
      MemberFailed         1   what Executor raises for a job that ended without a result

8 is no failure: `csub admin install-hooks --check` ends so where something would be changed.

Only the command line turns an exception into text and an exit status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence


class CollocError(Exception):
    """One problem, told in one sentence, with what to do about it.

    Args:
        message: What was wrong and where, as one sentence without a final full stop.
        hint: What the user can do, or an empty string.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class UsageProblem(CollocError):
    """The command line, a script or a directive is wrong."""

    exit_code = 2


class NoPackPossible(CollocError):
    """The request is well-formed, but no allocation of this cluster can hold it."""

    exit_code = 3


class SlurmError(CollocError):
    """A Slurm command failed.

    Args:
        message: What was wrong.
        hint: What the user can do.
        argv: The command that failed.
        returncode: Its exit status, or None where it never ran or never ended.
        stderr: What it wrote to standard error.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        argv: Sequence[str] = (),
        returncode: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stderr = stderr


class SlurmRefused(SlurmError):
    """Slurm looked at the request and said no."""


class SlurmUnreachable(SlurmError):
    """There is no Slurm on this machine, or its controller does not answer."""


class SlurmNoAnswer(SlurmUnreachable):
    """A request was sent, but no answer came: it may have been done."""


class NodeError(CollocError):
    """The node could not do what the pack needs."""

    exit_code = 5


class StateError(CollocError):
    """The state directory cannot be read or written."""

    exit_code = 6


class NotFound(CollocError):
    """No such pack or member."""

    exit_code = 7


class MemberFailed(CollocError):
    """A job of an Executor ended without a result, or its result cannot be used.

    Args:
        message: What became of it.
        hint: What the user can do.
        state: The member's state, such as `OUT_OF_MEMORY`; empty where the result is the problem.
        last_line: The last line that it wrote; empty where there is none.
    """

    def __init__(
        self, message: str, *, hint: str = "", state: str = "", last_line: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.state = state
        self.last_line = last_line


class Interrupted(CollocError):
    """The user pressed Ctrl-C; the exit code is the shell's 128 + SIGINT."""

    exit_code = 130


@contextlib.contextmanager
def failed_to(doing: str, path: object, kind: type[CollocError] = StateError) -> Iterator[None]:
    """Turn an OSError into `cannot DOING PATH: reason`."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot {doing} {path}: {error.strerror or error}") from error
