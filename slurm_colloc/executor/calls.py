"""Calls of functions, and their results, as files that the submitter and a member share.

Also: options of csub as Python writes them, and how calls are shown in csub's tables.

To load a pickle is to run what is in it. The folder may be one in which a group works, so only a
directory of the caller's own into which nobody else can write is read, and in it regular files.

FOLDER/train-5f3a9c/     one submission
  call.sh                its batch script
  0.call  1.call  ...    a line of JSON, the pickled function, the pickled arguments
  0.result               a line of JSON, the pickled value or exception; run_call.py writes it
  submitted.json         the id that csub has answered
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import pickle
import re
import reprlib
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import MemberFailed, NotFound, StateError, UsageProblem
from slurm_colloc.model.job import Parameters, check_parameter_name
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc.store.foreign_files import (
    UnexpectedFile,
    open_file,
    open_private_directory,
    read_descriptor,
)

SCHEMA = 1
_SUBMITTED = "submitted.json"
_SUBMITTED_BYTES_MOST = 16 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
    files = {"call.sh": script}
    files.update((f"{number}.call", line + content) for number, content in enumerate(pickled))
    try:
        directory.mkdir(mode=0o700, parents=True)
        with _opened(directory) as opened:
            for file_name, content in files.items():
                descriptor = os.open(file_name, _CREATE, 0o600, dir_fd=opened)
                with open(descriptor, "wb") as file:  # noqa: PTH123
                    file.write(content)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise StateError(
            f"cannot write the calls to {folder}: {os.strerror(error.errno or 0)}"
        ) from error
    return directory


@contextlib.contextmanager
def _opened(directory: Path | str, folder: int | None = None) -> Iterator[int]:
    descriptor = open_private_directory(directory, folder=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(name: str, directory: int, most: int = sys.maxsize) -> bytes:
    descriptor = open_file(name, folder=directory, owner=os.geteuid())
    try:
        return read_descriptor(descriptor, name, most)
    finally:
        os.close(descriptor)


def _pickle(calls: Sequence[PythonCall]) -> Iterator[bytes]:
    import cloudpickle

    functions: dict[int, bytes] = {}
    for call in calls:
        try:
            if id(call.function) not in functions:
                functions[id(call.function)] = cloudpickle.dumps(call.function)
            arguments = cloudpickle.dumps((call.args, dict(call.kwargs)))
        except Exception as error:
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
    write_atomic(directory / _SUBMITTED, json.dumps(value).encode())


def find_calls(folder: Path, job_id: str, number: int | None) -> tuple[Path, int, int]:
    """The directory of a submission, a call's place in it, and its member's number.

    Args:
        folder: The executor's folder.
        job_id: The submission, `4711`.
        number: The member's number; None for a submission of one.

    Raises:
        NotFound: There is none.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        names = []
    hint = "is it the Executor's folder?"
    for name in names:
        try:
            with _opened(folder / name) as directory:
                value = json.loads(_read(_SUBMITTED, directory, _SUBMITTED_BYTES_MOST))
            numbers = list(value["numbers"])
            if value["job_id"] == job_id and (number in numbers or (number is None and numbers)):
                chosen = int(numbers[0] if number is None else number)
                return folder / name, numbers.index(chosen), chosen
        except UnexpectedFile as problem:
            if problem.what == "mode":
                hint = f"{folder / name} is passed over: others may write into it (chmod go-w)"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    shown = job_id if number is None else f"{job_id}/{number}"
    raise NotFound(f"{folder} holds no call of job {shown}", hint=hint)


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
        with _opened(directory) as opened:
            line, _, content = _read(path.name, opened).partition(b"\n")
    except FileNotFoundError:
        return None
    except UnexpectedFile as problem:
        return None, MemberFailed(
            f"the result of {member} is not loaded: {directory / problem.filename}: "
            f"{problem.strerror}"
        )
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


# ---- Options of csub as Python writes them, and how calls are shown in csub's tables -------------

ARGUMENT_LONGEST = 120
"""Characters of an argument as tables show it."""

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 2 * ARGUMENT_LONGEST

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def build_words(options: Mapping[str, object]) -> list[str]:
    """Words of a command line for keyword arguments: `gpu_mem="10G"` is `--gpu-mem=10G`.

    Args:
        options: By name. True is an option without a value; None and False leave it out; a list
            is joined by commas.

    Raises:
        UsageProblem: A value is of a kind that no option has.
    """
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if value is None or value is False:
            continue
        words.append(f"--{option}" if value is True else f"--{option}={_write(name, value)}")
    return words


def _write(name: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_write(name, item) for item in value)
    if not isinstance(value, str | int | float | os.PathLike):
        raise UsageProblem(
            f"{name}={reprlib.repr(value)}: an option is a text, a number, True, or a list of them"
        )
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if "\0" in text:
        raise UsageProblem(f"{name}={text!r}: no option may hold a NUL")
    return text


def name_function(function: Callable[..., Any]) -> str:
    """A job name for a callable: the function's, or its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return _NOT_IN_A_NAME.sub("", str(name)) or "call"


def describe_function(function: Callable[..., Any]) -> str:
    """`train.fit`: where a callable comes from, on one line, as the batch script's comment."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return escape_controls(f"{named.__module__}.{named.__qualname__}")


def describe_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """A call's arguments as csub's tables show them, and as usage profiles tell jobs apart.

    Returns:
        `lr=0.1` for each, with the name of the function's parameter; the value alone where it
        has none.
    """
    names: list[str] = []
    try:
        parameters = inspect.signature(function).parameters.values()
        names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)
        ]
    except (TypeError, ValueError):
        # Some built-in functions have no signature.
        pass
    named = [
        f"{names[place]}={_show(value)}" if place < len(names) else _show(value)
        for place, value in enumerate(args)
    ]
    return (*named, *(f"{name}={_show(value)}" for name, value in kwargs.items()))


def find_parameters(arguments: Sequence[str]) -> Parameters:
    """Those of a call's arguments that have a name, hydra's `+lr=0.1` among them."""
    found = {}
    for text in arguments:
        name, equals, value = text.lstrip("+").partition("=")
        if not equals:
            continue
        try:
            check_parameter_name(name)
        except ValueError:
            continue
        found[name] = value
    return tuple(found.items())


def _show(value: Any) -> str:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = _ADDRESS.sub("", _SHORT.repr(value))
        except Exception:  # noqa: BLE001  # a class may fail at showing itself
            text = f"<{type(value).__name__}>"
    text = escape_controls(text)
    return text if len(text) <= ARGUMENT_LONGEST else f"{text[: ARGUMENT_LONGEST - 3]}..."
