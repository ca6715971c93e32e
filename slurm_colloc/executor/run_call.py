"""The program that a member of an Executor runs: one call, its result written next to it.

It is started by its path, under the Python that the call was pickled with, and imports nothing of
slurm_colloc.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, BinaryIO

VARIABLE = "CSUB_CALL"
"""The file of the call; %a in it is the array task."""

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Refused(Exception):
    """The call cannot be run; one sentence."""


def find_call() -> str:
    """The path of the call, without `.call`."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise Refused(
            f"{VARIABLE} is not set: this program is started by an Executor's batch script"
        )
    return path.replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", "0"))


def load_call(
    path: str,
) -> tuple[Mapping[str, Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call's first line, the function and its arguments."""
    with open_call(f"{path}.call") as file:
        try:
            header = json.loads(file.readline())
            python, entries = header["python"], header["path"]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"{path}.call is damaged") from None
        if python != OWN_PYTHON:
            raise Refused(
                f"the call was pickled by Python {python} and cannot be run by {OWN_PYTHON} "
                f"({sys.executable}): Executor(..., python=...) names the right one"
            )
        own = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [entry for entry in sys.path if entry != own]
        sys.path += [entry for entry in entries if entry not in sys.path]
        try:
            import cloudpickle  # noqa: F401  # the pickle needs it
        except ImportError:
            raise Refused(f"{sys.executable} has no cloudpickle: pip install cloudpickle") from None
        function = pickle.load(file)
        args, kwargs = pickle.load(file)
    return header, function, args, kwargs


def open_call(path: str) -> BinaryIO:
    """Open a pickle, which is code, where nobody else can have put it.

    The directory is held open: it may lie in a folder of a group, where it can be exchanged.
    """
    folder, name = os.path.split(path)
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(directory)
            if found.st_uid != os.geteuid():
                raise Refused(f"{folder} is a directory of another user, and its calls are not run")
            if found.st_mode & 0o022:
                raise Refused(f"others may write into {folder}, and its calls are not run")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    is_own = found.st_uid == os.geteuid()
    if stat.S_ISREG(found.st_mode) and is_own:
        return open(descriptor, "rb")
    os.close(descriptor)
    what = "no file" if is_own else "a file of another user"
    raise Refused(f"{path} is {what}, and is not run")


def write_file(path: str, header: Mapping[str, Any], content: bytes) -> None:
    """A line of JSON and a pickle, whole or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(json.dumps(header).encode() + b"\n" + content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_result(path: str, value: Any, error: BaseException | None, text: str) -> bool:
    """What the submitter gets; an exception that cannot be pickled goes as its traceback alone.

    Returns:
        It is a value.
    """
    import cloudpickle

    header = {"schema": 1, "python": OWN_PYTHON, "outcome": "value" if error is None else "error"}
    if error is not None:
        header["traceback"] = text
    try:
        content = cloudpickle.dumps(value if error is None else error)
    except Exception as problem:
        if error is None:
            text = f"the result cannot be pickled: {type(problem).__name__}: {problem}\n"
            print(text, end="", file=sys.stderr)
            header.update(outcome="error", traceback=text)
        content = b""
    write_file(f"{path}.result", header, content)
    return header["outcome"] == "value"


def find_checkpoint(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The method that says how a callable goes on; None for a function that cannot."""
    found: Callable[..., Any] | None = getattr(function, "__submitit_checkpoint__", None)
    return found or getattr(function, "checkpoint", None)


def follow_signal(
    path: str,
    header: Mapping[str, Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """At SIGUSR2 a callable with `checkpoint` tells how to go on, and its member starts again."""
    checkpoint = find_checkpoint(function)
    if checkpoint is None:
        return

    def requeue(_number: int, _frame: FrameType | None) -> None:
        import cloudpickle

        later = checkpoint(*args, **kwargs)
        if later is None:
            return
        content = cloudpickle.dumps(later.function)
        content += cloudpickle.dumps((tuple(later.args), dict(later.kwargs)))
        write_file(f"{path}.call", header, content)
        print("requeued with its checkpoint", file=sys.stderr, flush=True)
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
        # Its end comes from outside; until then nothing more is trained.
        signal.pause()

    signal.signal(signal.SIGUSR2, requeue)


def main() -> int:
    """Run the call; 1 where it raised, or its own exit status."""
    path = find_call()
    header, function, args, kwargs = load_call(path)
    with contextlib.suppress(FileNotFoundError):
        # Of an earlier start.
        os.unlink(f"{path}.result")
    follow_signal(path, header, function, args, kwargs)
    status, value, text = 0, None, ""
    error: BaseException | None = None
    try:
        value = function(*args, **kwargs)
    except BaseException as problem:
        error, status = problem, 1
        # Without the line of this program.
        if problem.__traceback__ is not None:
            problem.__traceback__ = problem.__traceback__.tb_next
        text = traceback.format_exc()
        if isinstance(problem, SystemExit):
            code = problem.code
            status = code if isinstance(code, int) else int(code is not None)
        print(text, end="", file=sys.stderr, flush=True)
    is_value = write_result(path, value, error, text)
    return status or int(not is_value)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Refused as problem:
        sys.exit(f"run_call: {problem}")
