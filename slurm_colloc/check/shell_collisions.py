"""Finds in a shell script what would collide when it shares a GPU; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_colloc.check.collisions import (
    ScriptFinding,
    clock_finding,
    device_finding,
    job_id_finding,
    port_finding,
    temporary_finding,
)
from slurm_colloc.check.memory_fraction import check_memory_assignment
from slurm_colloc.check.reaching_commands import (
    CommandReach,
    check_gpu,
    check_processes,
    check_removal,
    check_slurm,
)
from slurm_colloc.check.shell_programs import TALKERS, arguments_of, options_of, origin_of
from slurm_colloc.check.shell_words import (
    JOB_IDS,
    TCP_ADDRESS,
    Assignment,
    Command,
    Kind,
    ShellScript,
    ShellWord,
    WordPart,
    classify_port,
    find_clock,
    find_job_id,
    tells_members_apart,
)

_WRITERS = frozenset(
    {"mkdir", "cp", "mv", "touch", "tee", "ln", "rsync", "install", "mkfifo", "pushd", "cd", "rm"}
)
_NAMING_OPTION = re.compile(
    r"(dir|path|out|log|name|ckpt|checkpoint|save|file|prefix|deffnm|session|run[-_]?id|^o$)",
    re.IGNORECASE,
)
_NOT_A_NAME = re.compile(
    r"rdzv|job[-_]?id|seed|job[-_]?name|dependency|format|in(put)?[-_]?|data", re.IGNORECASE
)
_WRITING_OPTION = re.compile(
    r"(out|log|save|ckpt|checkpoint|cache|tmp|temp|work|sock|lock|pid|dump|result|store|^o$)",
    re.IGNORECASE,
)
_READING_OPTION = re.compile(r"(data|input|resume|load|config|from)", re.IGNORECASE)
_FILE_SUFFIX = re.compile(
    r"\0[\w.-]*\.(pt|pth|ckpt|txt|log|csv|json|jsonl|out|err|h5|hdf5|npz|npy|pkl|db|sqlite|tar|gz"
    r"|zip|ya?ml|xtc|trr|nc)$"
)
_SHARED_FOLDER = re.compile(r"^(/tmp|/var/tmp|/dev/shm)(/+|$)")
_IN_SHARED_FOLDER = re.compile(r"(^|=)(/tmp|/var/tmp|/dev/shm)")
_OUTPUT_OPERATORS = frozenset({">", ">>", ">|", "&>", "&>>"})


def check_exported_name(step: Assignment, file: str) -> Iterator[ScriptFinding]:
    """A variable that programs are given, and that names a file or directory."""
    if (
        step.name not in JOB_IDS
        and not _NOT_A_NAME.search(step.name)
        and ("/" in step.value.pattern or _NAMING_OPTION.search(step.name))
    ):
        yield from _check_name(step.value, file)


def check_names(command: Command, file: str) -> Iterator[ScriptFinding]:
    """What a command writes, by its redirections and its arguments."""
    for redirect in command.redirects:
        if redirect.operator in _OUTPUT_OPERATORS:
            yield from _check_name(redirect.target, file)
            yield from _check_temporary(redirect.target, file)
    name, words = arguments_of(command)
    if not words or name in TALKERS:
        return
    for position, word in enumerate(words):
        if word.literal is not None and not _IN_SHARED_FOLDER.search(word.literal):
            continue
        option, value = _named(words, position)
        if value is None:
            continue
        if _is_path(name, option, value):
            yield from _check_name(value, file)
        if _is_written(name, option, position, words):
            yield from _check_temporary(value, file)


def _named(words: tuple[ShellWord, ...], position: int) -> tuple[str, ShellWord | None]:
    """The option that a word is the value of ('' for none), and the value."""
    word = words[position]
    head = word.parts[0]
    if head.kind is Kind.TEXT:
        match = re.match(r"^(-{0,2}[\w.+-]+)=(.*)$", head.text, re.DOTALL)
        if match:
            first = (WordPart(Kind.TEXT, match[2], head.line),) if match[2] else ()
            return match[1].lstrip("-+"), ShellWord(
                (*first, *word.parts[1:]), word.source, word.line
            )
        if head.text.startswith("-"):
            return "", None
    before = words[position - 1].literal if position else None
    if before and before.startswith("-") and "=" not in before and not before.isdigit():
        return before.lstrip("-"), word
    return "", word


def _is_path(name: str, option: str, value: ShellWord) -> bool:
    if _NOT_A_NAME.search(option) and not re.search("dir|path|file", option):
        return False
    pattern = value.pattern
    if "://" in pattern:
        return False
    if "/" in pattern or name in _WRITERS:
        return True
    return bool((option and _NAMING_OPTION.search(option)) or _FILE_SUFFIX.search(pattern))


def _is_written(name: str, option: str, position: int, words: tuple[ShellWord, ...]) -> bool:
    if name in ("cp", "mv", "rsync", "ln", "install"):
        return position == len(words) - 1
    if name in _WRITERS:
        return name not in ("cd", "pushd")
    if name == "mktemp":
        return False
    return bool(_WRITING_OPTION.search(option) and not _READING_OPTION.search(option))


def _check_name(word: ShellWord, file: str) -> Iterator[ScriptFinding]:
    if tells_members_apart(word.parts):
        return
    job_id = find_job_id(word.parts)
    clock = find_clock(word.parts)
    if job_id is not None:
        yield job_id_finding(file, job_id.line, word.shown)
    elif clock is not None:
        yield clock_finding(file, clock.line, word.shown)


def _check_temporary(word: ShellWord, file: str) -> Iterator[ScriptFinding]:
    """A path below /tmp that nothing in it tells apart."""
    match = _SHARED_FOLDER.match(word.pattern)
    if match is None or tells_members_apart(word.parts):
        return
    rest = word.pattern[match.end() :].strip("/.")
    if not rest or rest == "*" or find_job_id(word.parts) or find_clock(word.parts):
        return
    if any(part.kind not in (Kind.TEXT, Kind.VARIABLE) for part in word.parts):
        return
    yield temporary_finding(file, origin_of(word), word.shown)


_PORT_OPTION = re.compile(r"-{1,2}(?:[a-z]+[-_])*port", re.IGNORECASE)
_ENDPOINT_OPTION = re.compile(r"--rdzv[-_]endpoint")
_ADDRESS = re.compile(r"^[\w.\-\0\[\]]*:(\d+)$")
# Values that keep a program off the GPU, which is harmless.
_NO_GPU = ("", "-1", "NoDevFiles")


def find_shell_collisions(
    script: ShellScript, file: str, reach: CommandReach | None = None
) -> list[ScriptFinding]:
    """What in a script would collide.

    Args:
        script: The script.
        file: What the user calls it.
        reach: What reaches csub's own commands where it begins; None for PATH alone.
    """
    found: list[ScriptFinding] = []
    reach = reach or CommandReach()
    for step in script.steps:
        if isinstance(step, Assignment):
            found += _check_assignment(step, file)
            found += check_memory_assignment(step, file)
            reach = reach.after(step)
        else:
            found += check_slurm(step, file, reach)
            for check in _COMMAND_CHECKS:
                found += check(step, file)
    return found


def _check_assignment(step: Assignment, file: str) -> Iterator[ScriptFinding]:
    what = f"{step.name}={step.value.source or step.value.shown}"
    if step.name in ("MASTER_PORT", "PET_MASTER_PORT"):
        port = classify_port(step.value.parts)
        if port:
            yield port_finding(file, origin_of(step.value), what, of_job=port == "job id")
    elif step.name == "CUDA_VISIBLE_DEVICES":
        text = step.value.literal
        own = any(part.text == step.name for part in step.value.holes)
        if not own and text not in _NO_GPU:
            yield device_finding(file, step.line, what)
    elif step.is_exported:
        yield from check_exported_name(step, file)


def _check_ports(command: Command, file: str) -> Iterator[ScriptFinding]:
    name, words = arguments_of(command)
    if name in TALKERS or not words or _is_client(words):
        return
    has_port = False
    for option, value in options_of(words):
        if _PORT_OPTION.fullmatch(option):
            has_port = True
            port = classify_port(value.parts)
            if port:
                what = f"{option}={value.shown}"
                yield port_finding(file, origin_of(value), what, of_job=port == "job id")
        elif _ENDPOINT_OPTION.fullmatch(option):
            has_port = True
            match = _ADDRESS.match(value.pattern)
            if match and int(match[1]):
                yield port_finding(file, origin_of(value), f"{option}={value.shown}", of_job=False)
        elif TCP_ADDRESS.match(value.pattern):
            yield port_finding(file, origin_of(value), f"{option}={value.shown}", of_job=False)
    literals = [word.literal for word in words]
    if literals[:2] == ["-m", "http.server"]:
        given = literals[2] if len(literals) > 2 else "8000"
        if given and given.isdigit() and int(given):
            yield port_finding(file, command.line, f"http.server {given}", of_job=False)
    starts_ray = name == "ray" and words[0].literal == "start"
    if starts_ray and not has_port and any(word.literal == "--head" for word in words):
        yield port_finding(file, command.line, "ray start --head (port 6379)", of_job=False)


def _is_client(words: tuple[ShellWord, ...]) -> bool:
    """The command talks to a server elsewhere."""
    for option, value in options_of(words):
        if option in ("--host", "-h", "--hostname", "--server", "--address"):
            text = value.literal
            if text is None or text not in ("", "localhost", "127.0.0.1", "0.0.0.0", "::"):
                return True
    return False


_COMMAND_CHECKS: tuple[Callable[[Command, str], Iterator[ScriptFinding]], ...] = (
    _check_ports,
    check_names,
    check_gpu,
    check_processes,
    check_removal,
)
