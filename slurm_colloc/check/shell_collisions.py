"""Finds in a shell script what would collide when it shares a GPU; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_colloc.check.collisions import Finding, device_finding, port_finding
from slurm_colloc.check.reaching_commands import (
    check_gpu,
    check_processes,
    check_removal,
    check_slurm,
)
from slurm_colloc.check.shared_names import check_exported_name, check_names
from slurm_colloc.check.shell_programs import TALKERS, arguments_of, options_of, origin_of
from slurm_colloc.check.shell_steps import Assignment, Command, ShellScript
from slurm_colloc.check.shell_words import TCP_ADDRESS, Word, classify_port

_PORT_OPTION = re.compile(r"-{1,2}(?:[a-z]+[-_])*port", re.IGNORECASE)
_ENDPOINT_OPTION = re.compile(r"--rdzv[-_]endpoint")
_ADDRESS = re.compile(r"^[\w.\-\0\[\]]*:(\d+)$")
# Values that keep a program off the GPU, which harms nobody.
_NO_GPU = ("", "-1", "NoDevFiles")


def find_shell_collisions(script: ShellScript, file: str) -> list[Finding]:
    """What in a script would collide.

    Args:
        script: The script.
        file: What the user calls it.
    """
    found: list[Finding] = []
    for step in script.steps:
        if isinstance(step, Assignment):
            found += _check_assignment(step, file)
        else:
            for check in _COMMAND_CHECKS:
                found += check(step, file)
    return found


def _check_assignment(step: Assignment, file: str) -> Iterator[Finding]:
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


def _check_ports(command: Command, file: str) -> Iterator[Finding]:
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


def _is_client(words: tuple[Word, ...]) -> bool:
    """The command talks to a server elsewhere."""
    for option, value in options_of(words):
        if option in ("--host", "-h", "--hostname", "--server", "--address"):
            text = value.literal
            if text is None or text not in ("", "localhost", "127.0.0.1", "0.0.0.0", "::"):
                return True
    return False


_COMMAND_CHECKS: tuple[Callable[[Command, str], Iterator[Finding]], ...] = (
    _check_ports,
    check_names,
    check_slurm,
    check_gpu,
    check_processes,
    check_removal,
)
