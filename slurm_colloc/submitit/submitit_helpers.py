"""submitit's helpers: commands as functions, and callables that go on where they stopped."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.executor.future_job import Job


class DelayedSubmission:
    """A call that is made later; what `checkpoint` returns.

    Args:
        function: The callable.
        *args: Its arguments.
        **kwargs: Its arguments by name.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def result(self) -> Any:
        """Make the call now."""
        return self.function(*self.args, **self.kwargs)


class Checkpointable:
    """A callable that goes on as it is, with its first arguments; for others to derive from."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The work; a class of the user's says what it is."""
        raise NotImplementedError

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        """How to go on after the time limit."""
        return DelayedSubmission(self, *args, **kwargs)


class CommandFunction:
    """A command as a function that returns what it has written to standard output.

    Args:
        command: Program and arguments.
        verbose: Show its output, too, as it comes.
        cwd: The directory to run it in.
        env: Variables that it gets besides.
    """

    def __init__(
        self,
        command: Sequence[str],
        verbose: bool = True,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(command, str):
            raise TypeError("the command is a list of words, as in ['which', 'python']")
        self.command, self.verbose, self.cwd, self.env = list(command), verbose, cwd, env

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run it with more arguments; kwargs are `--name=value`.

        Raises:
            RuntimeError: It has failed; the end of its standard error is in the message.
        """
        words = [*self.command, *map(str, args), *(f"--{k}={v}" for k, v in kwargs.items())]
        ended = subprocess.run(
            words,
            cwd=self.cwd,
            env={**os.environ, **(self.env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if self.verbose:
            sys.stdout.write(ended.stdout)
            sys.stderr.write(ended.stderr)
        if ended.returncode:
            raise RuntimeError(
                f"{words[0]} has ended with exit status {ended.returncode}: "
                f"{ended.stderr.strip()[-1000:]}"
            )
        return ended.stdout.strip()


def as_completed(
    jobs: Iterable[Job[Any]],
    timeout: float | None = None,
    poll_frequency: float = 10,  # noqa: ARG001  # submitit's name
) -> Iterator[concurrent.futures.Future[Any]]:
    """Jobs as they end."""
    return concurrent.futures.as_completed(list(jobs), timeout)
