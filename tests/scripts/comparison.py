"""Says what differs between a script's run by sbatch and its run as a member of a pack.

Everything counts: exit code and signal, names, kinds, permissions and contents of files. What may
differ is said by an `Allowance`, which names a text and the reason; anything else is a difference.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Allowance:
    """A text that may differ, in contents and names.

    Attributes:
        pattern: Regular expression; its groups stay as they are, the rest of a match may differ.
        why: The reason.
        files: The files in which it may differ (regular expression over the whole name).
        optional: It may also be missing.
    """

    pattern: str
    why: str
    files: str = ".*"
    optional: bool = False


@dataclass(frozen=True)
class Entry:
    """One file, folder or link below a working directory."""

    kind: str
    permissions: int
    content: bytes = b""


@dataclass(frozen=True)
class Run:
    """What one run left behind.

    Attributes:
        exit_code: The script's exit code.
        signal: The signal that ended it, 0 for none.
        tree: Everything below its working directory, by path.
    """

    exit_code: int
    signal: int
    tree: Mapping[str, Entry]


def read_tree(directory: Path, *, leave_out: Sequence[str] = ()) -> dict[str, Entry]:
    """Read everything below a directory, except what was put there before the run."""
    tree = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if any(name == given or name.startswith(f"{given}/") for given in leave_out):
            continue
        status = path.lstat()
        permissions = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            tree[name] = Entry("link", 0, str(path.readlink()).encode())
        elif stat.S_ISDIR(status.st_mode):
            tree[name] = Entry("folder", permissions)
        elif stat.S_ISREG(status.st_mode):
            tree[name] = Entry("file", permissions, path.read_bytes())
        else:
            tree[name] = Entry(f"type {stat.S_IFMT(status.st_mode):o}", permissions)
    return tree


def mask_run(run: Run, allowances: Sequence[Allowance]) -> Run:
    """The run with everything that may differ made equal.

    Files whose names become equal are told apart by their order.
    """
    tree: dict[str, Entry] = {}
    for name, entry in run.tree.items():
        masked = name
        content = entry.content
        for allowance in allowances:
            masked = _mask(masked.encode(), allowance).decode()
            if re.fullmatch(allowance.files, name):
                content = _mask(content, allowance)
        while masked in tree:
            masked += " (one more)"
        tree[masked] = Entry(entry.kind, entry.permissions, content)
    return Run(run.exit_code, run.signal, tree)


def _mask(text: bytes, allowance: Allowance) -> bytes:
    def keep_groups(match: re.Match[bytes]) -> bytes:
        if allowance.optional:
            return b""
        return b"~".join([b"", *(group or b"" for group in match.groups()), b""])

    return re.sub(allowance.pattern.encode(), keep_groups, text)


def find_unused(allowances: Sequence[Allowance], runs: Sequence[Run]) -> list[Allowance]:
    """The allowances that match nothing in any run: they allow what does not happen."""
    return [
        allowance
        for allowance in allowances
        if not allowance.optional
        and not any(
            re.search(allowance.pattern.encode(), name.encode())
            or (
                re.fullmatch(allowance.files, name)
                and re.search(allowance.pattern.encode(), entry.content)
            )
            for run in runs
            for name, entry in run.tree.items()
        )
    ]


def find_differences(expected: Run, actual: Run) -> list[str]:
    """Say, one line each, what differs between two runs whose allowances are masked."""
    differences = []
    if (expected.exit_code, expected.signal) != (actual.exit_code, actual.signal):
        differences.append(
            f"exit: sbatch {expected.exit_code}:{expected.signal}, "
            f"csub {actual.exit_code}:{actual.signal}"
        )
    for name in sorted(expected.tree.keys() | actual.tree.keys()):
        ours, theirs = actual.tree.get(name), expected.tree.get(name)
        if theirs is None:
            differences.append(f"{name}: only csub wrote it")
        elif ours is None:
            differences.append(f"{name}: only sbatch wrote it")
        elif (theirs.kind, theirs.permissions) != (ours.kind, ours.permissions):
            differences.append(
                f"{name}: sbatch {theirs.kind} {theirs.permissions:o}, "
                f"csub {ours.kind} {ours.permissions:o}"
            )
        elif theirs.content != ours.content:
            differences.append(f"{name}: {_describe(theirs.content, ours.content)}")
    return differences


def _describe(expected: bytes, actual: bytes) -> str:
    """The first lines that differ."""
    pairs = zip([*expected.split(b"\n"), b""], [*actual.split(b"\n"), b""], strict=False)
    for number, (theirs, ours) in enumerate(pairs, start=1):
        if theirs != ours:
            shown = f"line {number}: sbatch {theirs!r:.{_SHOWN_CHARACTERS}}"
            return f"{shown}, csub {ours!r:.{_SHOWN_CHARACTERS}}"
    return f"{len(expected)} bytes by sbatch, {len(actual)} by csub"
