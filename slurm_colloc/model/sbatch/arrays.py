"""The `--array` specification: parsing it, and writing task ids back in short."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

# The largest MaxArraySize that slurm.conf(5) allows is 4000001.
LARGEST_TASK_ID = 4_000_000

_BRACKETS = re.compile(r"\[([^\[\]]*)\](%.*)?")
_TOKEN = re.compile(r"\s*(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", re.ASCII)
_LIMIT = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class ArraySpec:
    """What `--array` asks for.

    Attributes:
        task_ids: The task numbers, ascending, each once.
        limit: How many may run at the same time (`%N`), or None for no limit.
        step: What SLURM_ARRAY_TASK_STEP says: the first step that was written, 1 without.
    """

    task_ids: tuple[int, ...]
    limit: int | None = None
    step: int = field(default=1, compare=False)


def parse_array(text: str, *, max_task_id: int = LARGEST_TASK_ID) -> ArraySpec:
    """Return the tasks of an `--array` value such as `0-7%2` or `1,3,5-9:2`.

    Numbers, ranges `A-B` and stepped ranges `A-B:S`, separated by commas; `%N` once, after any of
    them, limits how many run together and `%0` does not (as in Slurm, which reads it as no limit).
    Brackets around the list, as squeue prints it, are taken, and blanks before a number. Numbers
    may repeat.

    Args:
        text: The value.
        max_task_id: The largest task number allowed (MaxArraySize - 1).

    Raises:
        ValueError: It is empty, reversed, too large, or no array specification.
    """
    stripped = text.lstrip()
    if match := _BRACKETS.fullmatch(stripped):
        stripped = match[1] + (match[2] or "")
    task_ids: set[int] = set()
    limit: int | None = None
    limit_seen = False
    for token in filter(None, stripped.split(",")):
        indexes, percent, limit_text = token.partition("%")
        if percent:
            if limit_seen or not _LIMIT.fullmatch(limit_text):
                raise ValueError(f"array {text!r}: after '%' stands one number, once")
            limit_seen = True
            limit = int(limit_text) or None
        task_ids.update(_parse_range(text, indexes, max_task_id))
    if not task_ids:
        raise ValueError(f"array {text!r} names no task: write numbers or ranges, as in 0-7")
    first_step = re.search(r":(\d+)", stripped)
    return ArraySpec(tuple(sorted(task_ids)), limit, int(first_step[1]) if first_step else 1)


def _parse_range(text: str, indexes: str, max_task_id: int) -> range:
    match = _TOKEN.fullmatch(indexes)
    if match is None:
        raise ValueError(
            f"array {text!r}: {indexes!r} is neither a number nor a range such as 0-7 or 0-8:2"
        )
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if last < first:
        raise ValueError(f"array {text!r}: the range {indexes} runs backwards")
    if last > max_task_id:
        raise ValueError(f"array {text!r}: task {last} is above the largest allowed, {max_task_id}")
    if not 0 < step <= max_task_id:
        raise ValueError(f"array {text!r}: the step {step} must be from 1 to {max_task_id}")
    return range(first, last + 1, step)


def format_task_ids(task_ids: Iterable[int]) -> str:
    """Write task numbers in short: `0-2,5,7`, or `1-9:2` where one step covers them all.

    `parse_array` reads the same numbers back. Nothing gives the empty string.
    """
    ids = sorted(set(task_ids))
    if (
        len(ids) > 2
        and (step := ids[1] - ids[0]) > 1
        and ids == list(range(ids[0], ids[-1] + 1, step))
    ):
        return f"{ids[0]}-{ids[-1]}:{step}"
    return format_task_runs(ids)


def format_task_runs(task_ids: Iterable[int]) -> str:
    """The same without steps, which scontrol does not read everywhere: `0-2,5,7`."""
    runs: list[list[int]] = []
    for task_id in sorted(set(task_ids)):
        if runs and runs[-1][1] == task_id - 1:
            runs[-1][1] = task_id
        else:
            runs.append([task_id, task_id])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
