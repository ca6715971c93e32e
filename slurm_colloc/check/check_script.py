"""`csub check`: reads a script and the Python programs that it starts; runs nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from slurm_colloc.check.collisions import ScriptFinding, Severity, merge_findings
from slurm_colloc.check.memory_fraction import read_shell_environment
from slurm_colloc.check.python_collisions import find_python_collisions
from slurm_colloc.check.reaching_commands import CommandReach
from slurm_colloc.check.shared_outputs import (
    SHARED_OUTPUT,
    changes_directory,
    find_shell_outputs,
    settle_outputs,
)
from slurm_colloc.check.shell_collisions import find_shell_collisions
from slurm_colloc.check.shell_programs import base_name, program_at
from slurm_colloc.check.shell_reading import parse_shell
from slurm_colloc.check.shell_words import Command, ShellScript
from slurm_colloc.model.job import Job

_SHELLS = re.compile(r"^(ba|z|da|k|a|mk)?sh$")
_PYTHON = re.compile(r"^(python|pypy)[\d.]*$")
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "ipython", "coverage"})
_LARGEST_PROGRAM_BYTES = 1024 * 1024
_MOST_PROGRAMS = 20


@dataclass(frozen=True)
class Program:
    """A Python program that a script starts.

    Attributes:
        shown: Its path as it stands in the script, or the script for one inside it.
        line: The line of `shown` where it begins, 1 for a file.
        text: The program; None where it is to be read from the file.
        arguments: What it is called with, as far as it is known.
    """

    shown: str
    line: int
    text: str | None
    arguments: tuple[str, ...]


def check_script_text(
    job: Job, content: bytes, environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[ScriptFinding], list[str]]:
    """What in a script, and in the Python programs that it starts, would collide.

    Args:
        job: The job; its directory is where the programs are looked for.
        content: The script.
        environment: The variables that it is started with.

    Returns:
        The findings, and the files that were read.
    """
    text = content.decode("utf-8", "replace")
    interpreter = choose_interpreter(text)
    file = job.script_name
    is_array = job.array_task is not None
    if interpreter == "python":
        program = Program(file, 1, text, job.arguments)
        findings = _check_program(program, job.directory, environment)
        return merge_findings(settle_outputs(findings, is_array=is_array)), [file]
    if interpreter != "shell":
        unread = ScriptFinding(
            "not-read",
            file,
            1,
            text.split("\n", 1)[0],
            "csub reads only shell and Python: of this script it knows only the request",
            level=Severity.NOTE,
        )
        return [unread], [file]
    script = parse_shell(text, job.arguments)
    findings = find_shell_collisions(script, file, choose_reach(text))
    findings += _tell_not_understood(script, file)
    read = [file]
    inside = {**environment, **read_shell_environment(script)}
    for program in list(find_programs(script, file, job.directory))[:_MOST_PROGRAMS]:
        findings += _check_program(program, job.directory, inside)
        if program.shown not in read:
            read.append(program.shown)
    if changes_directory(script):
        findings = [finding for finding in findings if finding.kind != SHARED_OUTPUT]
    elif is_array:
        findings += find_shell_outputs(script, file)
    return merge_findings(settle_outputs(findings, is_array=is_array)), read


def choose_interpreter(text: str) -> str:
    """`shell`, `python`, or '' for others, by the first line."""
    words = text.split("\n", 1)[0].removeprefix("#!").split()
    names = [base_name(word) for word in words]
    if names[:1] == ["env"]:
        names = [name for name in names[1:] if not name.startswith("-") and "=" not in name]
    name = names[0] if names else ""
    if _SHELLS.match(name):
        return "shell"
    return "python" if _PYTHON.match(name) else ""


def choose_reach(text: str) -> CommandReach:
    """What reaches csub's own commands where a script begins.

    A login shell sets PATH anew; bash puts it back (runtime.launch.bash_protection).
    """
    words = text.split("\n", 1)[0].removeprefix("#!").split()
    is_login = any(
        word == "--login" or (re.fullmatch(r"-[a-z]*l[a-z]*", word) is not None) for word in words
    )
    is_bash = any(base_name(word) == "bash" for word in words)
    return CommandReach(is_bash, 1 if is_login and not is_bash else None)


def _tell_not_understood(script: ShellScript, file: str) -> list[ScriptFinding]:
    return [
        ScriptFinding(
            "not-understood",
            file,
            line,
            "syntax that csub does not know",
            "this part was not checked",
            level=Severity.NOTE,
        )
        for line in script.not_understood
    ]


def find_programs(script: ShellScript, file: str, directory: str) -> Iterator[Program]:
    """The Python programs that the commands of a script start, each once for each call."""
    seen: set[tuple[str, int, tuple[str, ...]]] = set()
    for step in script.steps:
        if not isinstance(step, Command):
            continue
        program = _find_program(step, file, directory)
        if program is None:
            continue
        key = (program.shown, program.line, program.arguments)
        if key not in seen:
            seen.add(key)
            yield program


def _find_program(command: Command, file: str, directory: str) -> Program | None:
    at = program_at(command)
    if at is None:
        return None
    literals = [word.literal for word in command.words[at:]]
    first = literals[0] or ""
    if first.endswith(".py") and "/" in first:
        return Program(first, 1, None, _known(literals[1:]))
    is_python = bool(_PYTHON.match(base_name(first)))
    if is_python and literals[1:2] == ["-c"]:
        code = literals[2] if len(literals) > 2 else None
        return Program(file, command.words[at + 2].line, code, ()) if code else None
    if not is_python and base_name(first) not in _LAUNCHERS:
        return None
    for position, text in enumerate(literals):
        # `python -m torch.distributed.run train.py` is found here too.
        if text is not None and text.endswith(".py"):
            return Program(text, 1, None, _known(literals[position + 1 :]))
    return _find_module(literals, directory) or _find_document(command, file, is_python=is_python)


def _find_module(literals: Sequence[str | None], directory: str) -> Program | None:
    """`python -m package.train`, where it lies in the working directory."""
    if "-m" not in literals[:-1]:
        return None
    position = literals.index("-m") + 1
    path = f"{(literals[position] or '').replace('.', '/')}.py"
    if not os.path.isfile(os.path.join(directory, path)):
        return None
    return Program(path, 1, None, _known(literals[position + 1 :]))


def _find_document(command: Command, file: str, *, is_python: bool) -> Program | None:
    document = command.document
    if not is_python or document is None or document.text is None:
        return None
    return Program(file, document.line, document.text, ())


def _known(literals: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(text for text in literals if text is not None)


def _check_program(
    program: Program, directory: str, environment: Mapping[str, str | None]
) -> list[ScriptFinding]:
    text = program.text
    if text is None:
        path = os.path.join(directory, program.shown)
        try:
            with open(path, "rb") as stream:
                text = stream.read(_LARGEST_PROGRAM_BYTES).decode("utf-8", "replace")
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            return [_unread(program, f"it cannot be read here ({reason}), and was not checked")]
    try:
        return find_python_collisions(
            text,
            program.shown,
            first_line=program.line,
            arguments=program.arguments,
            environment=environment,
        )
    except (SyntaxError, ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        return [_unread(program, f"it is not Python of this version ({said}), and was not checked")]


def _unread(program: Program, why: str) -> ScriptFinding:
    return ScriptFinding(
        "not-read", program.shown, program.line, "a program it starts", why, level=Severity.NOTE
    )
