"""Calls of functions, and their results, as files that the submitter and a member share.

FOLDER/train-5f3a9c/     one submission
  call.sh                its batch script
  0.call  1.call  ...    a line of JSON, the pickled function, the pickled arguments
  0.result               a line of JSON, the pickled value or exception; run_call.py writes it
  submitted.json         the id that csub has answered
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.errors import MemberFailed, NotFound, StateError, UsageProblem
from slurm_colloc.model.printable import cut
from slurm_colloc.store.atomic_files import write_atomic

SCHEMA = 1
RUN_CALL = Path(__file__).with_name("run_call.py")

_SCRIPT = """\
#!/bin/sh
# Calls {function}; written by slurm_colloc's Executor.
{setup}exec {python} -u {program}
"""


@dataclass(frozen=True)
class PythonCall:
    """One call of a function.

    Raises:
        UsageProblem: It is not a function.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageProblem(
                f"{cut(repr(self.function))} is not a function",
                hint="submit takes a script, too, and map a function alone",
            )


class RemoteTraceback(Exception):
    """The traceback of a call as its member has written it; the cause of its exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def write_calls(folder: Path, calls: Sequence[PythonCall], *, name: str, script: bytes) -> Path:
    """Write calls into a new directory below a folder, all of them or none.

    Args:
        folder: Where the directories of submissions lie; made where it is missing.
        calls: The calls.
        name: How the directory's name begins.
        script: Their batch script.

    Raises:
        StateError: It cannot be written.
        UsageProblem: A function or an argument cannot be pickled.
    """
    pickled = list(_pickle(calls))
    header = {
        "schema": SCHEMA,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100  # '' is the cwd
    }
    line = json.dumps(header).encode() + b"\n"
    directory = folder / f"{name}-{secrets.token_hex(4)}"
    try:
        directory.mkdir(mode=0o700, parents=True)
        (directory / "call.sh").write_bytes(script)
        for number, content in enumerate(pickled):
            path = directory / f"{number}.call"
            with open(path, "wb", opener=_open_private) as file:
                file.write(line + content)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise StateError(
            f"cannot write the calls to {folder}: {os.strerror(error.errno or 0)}"
        ) from error
    return directory


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _pickle(calls: Sequence[PythonCall]) -> Iterator[bytes]:
    import cloudpickle

    functions: dict[int, bytes] = {}
    for call in calls:
        try:
            if id(call.function) not in functions:
                functions[id(call.function)] = cloudpickle.dumps(call.function)
            arguments = cloudpickle.dumps((call.args, dict(call.kwargs)))
        except Exception as error:
            from slurm_colloc.executor.call_options import describe_function

            raise UsageProblem(
                f"the call of {describe_function(call.function)} cannot be pickled: "
                f"{type(error).__name__}: {error}",
                hint="hand over paths or plain values, and open files in the function",
            ) from error
        yield functions[id(call.function)] + arguments


def build_script(function: str, python: str, setup: Sequence[str]) -> bytes:
    """The batch script of calls.

    Args:
        function: Which function, for people; jobs of one function are of one kind by it.
        python: The interpreter.
        setup: Lines of shell before it.
    """
    text = _SCRIPT.format(
        function=function,
        python=shlex.quote(python),
        program=shlex.quote(str(RUN_CALL)),
        setup="".join(f"{line}\n" for line in setup),
    )
    return text.encode("utf-8", "surrogateescape")


def note_submitted(directory: Path, job_id: str, numbers: Sequence[int]) -> None:
    """Write down which submission a directory's calls are; by it a job is found again."""
    value = {"schema": SCHEMA, "job_id": job_id, "numbers": list(numbers)}
    write_atomic(directory / "submitted.json", json.dumps(value).encode())


def find_calls(folder: Path, job_id: str, number: int | None) -> tuple[Path, int, int]:
    """The directory of a submission, a call's place in it, and its member's number.

    Args:
        folder: The executor's folder.
        job_id: The submission, `4711`.
        number: The member's number; None for a submission of one.

    Raises:
        NotFound: There is none.
    """
    for path in folder.glob("*/submitted.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            value = json.loads(path.read_bytes())
            numbers = value["numbers"]
            if value["job_id"] == job_id and (number in numbers or (number is None and numbers)):
                chosen = numbers[0] if number is None else number
                return path.parent, numbers.index(chosen), chosen
    shown = job_id if number is None else f"{job_id}/{number}"
    raise NotFound(f"{folder} holds no call of job {shown}", hint="is it the Executor's folder?")


def read_result(
    directory: Path, place: int, member: str
) -> tuple[Any, BaseException | None] | None:
    """What a call has returned or raised; None while it has not.

    Args:
        directory: The submission's.
        place: The call's number in it.
        member: Its member, for messages.

    Returns:
        The value and None, or None and the exception.
    """
    path = directory / f"{place}.result"
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None, MemberFailed(f"{path} is a file of another user, and is not loaded")
            line, content = file.readline(), file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        return None, MemberFailed(
            f"the result of {member} cannot be read: {path}: {os.strerror(error.errno or 0)}"
        )
    try:
        header = json.loads(line)
        text, is_error = str(header.get("traceback", "")), header["outcome"] != "value"
        written_by = str(header["python"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, MemberFailed(f"the result of {member} is damaged: {path}")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if written_by != own:
        return None, MemberFailed(
            f"the result of {member} was written by Python {written_by}, and this is {own}"
        )
    return _load(content, text, member, is_error=is_error)


def _load(
    content: bytes, text: str, member: str, *, is_error: bool
) -> tuple[Any, BaseException | None]:
    try:
        value = pickle.loads(content) if content else None
    except Exception as error:  # noqa: BLE001  # a class of the user's may raise anything
        problem = MemberFailed(
            f"the {'exception' if is_error else 'result'} of {member} cannot be loaded here: "
            f"{type(error).__name__}: {error}"
        )
        problem.__cause__ = RemoteTraceback(text) if text else error
        return None, problem
    if not is_error:
        return value, None
    # SystemExit and its like would end the program that asks for the result.
    if not isinstance(value, Exception):
        value = MemberFailed(f"{member}: {text.rstrip().rpartition(_BREAK)[2]}")
    value.__cause__ = RemoteTraceback(text)
    return None, value


_BREAK = "\n"
