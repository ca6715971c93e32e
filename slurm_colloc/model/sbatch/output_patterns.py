"""File name patterns of sbatch (sbatch(1), filename pattern), for members."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPECIFIER = re.compile(r"%(\d*)([%AaJjNnstuxb])", re.ASCII)
_WIDTH_MOST = 10


@dataclass(frozen=True)
class PatternValues:
    """What the specifiers stand for.

    Attributes:
        job_id: Slurm job id (of the array).
        number: The member's number.
        is_array: The member came by `--array`.
        name: Job name.
        node: Short host name.
        user: User name.
    """

    job_id: str
    number: int
    is_array: bool
    name: str
    node: str
    user: str


def expand_pattern(pattern: str, values: PatternValues) -> str:
    """Expand `%j %A %a %x %N %u %J %n %t %s %b %%`; the width in `%4j` pads with zeros.

    A backslash anywhere switches expansion off, as in sbatch. Task, node and step specifiers are
    those of a batch script: 0, 0 and `batch`.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    replacements = {
        "%": "%",
        "A": values.job_id,
        "a": str(values.number),
        "J": values.job_id,
        "j": values.job_id,
        "N": values.node,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": values.user,
        "x": values.name,
        "b": str(values.number % 10),
    }

    def replace(match: re.Match[str]) -> str:
        text = replacements[match[2]]
        return text.zfill(_read_width(match[1])) if text.isdigit() else text

    return _SPECIFIER.sub(replace, pattern)


def expand_array_id(pattern: str, job_id: str) -> str:
    """Expand `%A` alone, and leave the rest to Slurm."""
    if "\\" in pattern:
        return pattern

    def replace(match: re.Match[str]) -> str:
        if match[2] != "A":
            return match[0]
        return job_id.zfill(_read_width(match[1]))

    return _SPECIFIER.sub(replace, pattern)


def _read_width(digits: str) -> int:
    """The width of a specifier; Slurm takes 10 at most, and Python no more than 4300 digits."""
    return min(_WIDTH_MOST, int(digits.lstrip("0")[:18] or "0"))


def choose_output_paths(
    output: str | None, error: str | None, values: PatternValues, *, alone: bool
) -> tuple[str, str | None]:
    """The member's output and error file, never the same for two members.

    Args:
        output: `--output`, or None for `slurm-%j.out` (a lone job) or `slurm-%A_%a.out`.
        error: `--error`, or None where both go to one file.
        values: What the specifiers stand for.
        alone: The job is no array task and the only member, so nothing can collide.

    Returns:
        Paths as the user wrote them (relative to the working directory); the second is None
        where both go to one file. `/dev/null` stays what it is. A pattern without `%a` gets
        `_<number>` before its suffix: `run.log` becomes `run_3.log`.
    """
    if output is None:
        output = "slurm-%j.out" if alone else "slurm-%A_%a.out"
    return (
        _choose_path(output, values, alone=alone),
        None if error is None else _choose_path(error, values, alone=alone),
    )


def is_device(path: str) -> bool:
    """A device, which members may share; /dev/shm and /dev/mqueue hold ordinary files."""
    return path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/mqueue/"))


def _choose_path(pattern: str, values: PatternValues, *, alone: bool) -> str:
    path = expand_pattern(pattern, values)
    if alone or is_device(path) or _tells_members_apart(pattern):
        return path
    head, slash, last = path.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    last = f"{stem}_{values.number}.{suffix}" if dot and stem else f"{last}_{values.number}"
    return f"{head}{slash}{last}"


def _tells_members_apart(pattern: str) -> bool:
    return "\\" not in pattern and any(match[2] == "a" for match in _SPECIFIER.finditer(pattern))
