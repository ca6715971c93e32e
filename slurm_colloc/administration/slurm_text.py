"""Changing a slurm.conf, and taking the change back; the text is pure, one function writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from slurm_colloc.administration.slurm_lines import LineChange
from slurm_colloc.errors import StateError, UsageProblem

BEGIN = "# slurm_colloc begin:"
END = "# slurm_colloc end"
_WAS = "#was "
_SECOND_SETTING = re.compile(r"\s\w+\s*=")
# Where slurmd and sackd keep what the controller sent them.
_CACHED = re.compile(r"^/run/slurm/conf/|/conf-cache/")


def render_lines(changes: Sequence[LineChange]) -> list[str]:
    """The lines that a slurm.conf needs, each with its reason above it."""
    lines = []
    for change in changes:
        lines.append(f"# {change.reason}")
        lines += [f"{change.name}={value}" for value in change.after]
        if not change.after:
            lines.append(f"# (no {change.name})")
    return lines


def change_text(text: str, changes: Sequence[LineChange]) -> str:
    """A slurm.conf with these changes; what they replace stays as comments.

    Raises:
        UsageProblem: A line to replace is not as Slurm has it, or holds more than one setting.
    """
    lines = text.splitlines()
    for change in changes:
        found = _find_lines(lines, change)
        block = [
            f"{BEGIN} {change.reason}",
            *(f"{_WAS}{lines[number]}" for number in found),
            *(f"{change.name}={value}" for value in change.after),
            END,
        ]
        if not found:
            lines += block
            continue
        first = found[0]
        rest = [line for number, line in enumerate(lines) if number > first and number not in found]
        lines = [*lines[:first], *block, *rest]
    return "\n".join(lines) + "\n"


def find_missing(text: str, changes: Sequence[LineChange]) -> list[LineChange]:
    """The changes that a slurm.conf does not have yet, whether Slurm has read it since or not."""
    lines = text.splitlines()
    return [
        change
        for change in changes
        if [value for _, value in _list_values(lines, change.name)] != list(change.after)
    ]


def restore_text(text: str, names: Sequence[str]) -> str:
    """A slurm.conf as it was before `change_text` changed these settings."""
    kept: list[str] = []
    block: list[str] = []
    wanted = {name.lower() for name in names}
    for line in text.splitlines():
        if line.startswith(BEGIN) or block:
            block.append(line)
            if line == END:
                kept += _restore_block(block, wanted)
                block = []
        else:
            kept.append(line)
    return "\n".join([*kept, *block]) + "\n"


def _restore_block(block: Sequence[str], wanted: set[str]) -> Sequence[str]:
    before = [line.removeprefix(_WAS) for line in block if line.startswith(_WAS)]
    settings = [line for line in block[1:-1] if not line.startswith(_WAS)]
    names = {line.partition("=")[0].strip().lower() for line in [*settings, *before]}
    return before if names and names <= wanted else block


def _list_values(lines: Sequence[str], name: str) -> list[tuple[int, str]]:
    """The lines that hold a setting, by number, with what follows the equals sign."""
    found = []
    for number, line in enumerate(lines):
        setting, separator, value = line.partition("=")
        if separator and setting.strip().lower() == name.lower():
            found.append((number, value.partition("#")[0].strip().strip('"')))
    return found


def _find_lines(lines: Sequence[str], change: LineChange) -> list[int]:
    """The lines that hold a setting now."""
    found = _list_values(lines, change.name)
    for number, value in found:
        if value.endswith("\\") or _SECOND_SETTING.search(value):
            raise UsageProblem(
                f"line {number + 1} holds more than {change.name}",
                hint="change it by hand; csub admin install-hooks --controller prints what is "
                "needed",
            )
    values = [value for _, value in found]
    expected = [value.lower() for value in change.before]
    if [value.lower() for value in values] != expected:
        raise UsageProblem(
            f"Slurm runs with {change.name}={','.join(change.before) or '(none)'}, and this file "
            f"has {','.join(values) or 'no such line'}",
            hint="an included file, or scontrol reconfigure was not run since the last change: "
            "change it by hand",
        )
    return [number for number, _ in found]


def read_conf(path: str) -> str:
    """Read a slurm.conf that may be changed.

    Raises:
        UsageProblem: It is a copy that the controller sent, or cannot be read.
    """
    if _CACHED.search(os.path.realpath(path)):
        raise UsageProblem(
            f"{path} is a copy that slurmd got from the controller",
            hint="change slurm.conf on the controller",
        )
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path} is not UTF-8 text: {error}") from error


def write_conf(path: str, text: str, *, now_s: float | None = None) -> str:
    """Put a new slurm.conf in the old one's place at once; the old one stays as a backup.

    Owner and mode stay as they were. Where the path is a link, what it leads to is replaced.

    Args:
        path: The file.
        text: What it is to hold.
        now_s: The time for the backup's name; now where None.

    Returns:
        The backup's path.

    Raises:
        StateError: It cannot be written; the old file is untouched.
    """
    target = os.path.realpath(path)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_s))
    backup = f"{target}.before-slurm_colloc.{stamp}"
    temporary = f"{target}.slurm_colloc.{os.getpid()}"
    try:
        status = os.stat(target)
        number = 0
        while os.path.lexists(backup):
            number += 1
            backup = f"{target}.before-slurm_colloc.{stamp}.{number}"
        os.link(target, backup)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(temporary, flags, 0o600)
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, status.st_mode & 0o7777)
                os.fsync(descriptor)
            os.replace(temporary, target)
        except BaseException:
            for leftover in (temporary, backup):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
            raise
    except OSError as error:
        raise StateError(f"cannot change {path}: {os.strerror(error.errno or 0)}") from error
    return backup
