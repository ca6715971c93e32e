"""Ids of jobs and members as users and programs write them: one number has one meaning.

Also: the `--array` specification: parsing it, and writing task ids back in short.

`4711/3` is csub's own way, `4711_3` and `4711_[1-3,5]` are Slurm's for tasks of an array. What
Slurm itself calls `4711_3` is never another thing: packs are elements with other indices
(`submission.packs.call_batches`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_colloc.model.late_definitions import dataclass, field, late_pattern

# ---- The `--array` specification: parsing it, and writing task ids back in short -----------------

# The largest MaxArraySize that slurm.conf(5) allows is 4000001.
LARGEST_TASK_ID = 4_000_000

_BRACKETS = late_pattern(r"\[([^\[\]]*)\](%.*)?")
_TOKEN = late_pattern(r"(?a)\s*(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")
_LIMIT = late_pattern(r"(?a)\d{1,9}")


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
        task_ids.update(_parse_task_range(text, indexes, max_task_id))
    if not task_ids:
        raise ValueError(f"array {text!r} names no task: write numbers or ranges, as in 0-7")
    first_step = re.search(r":(\d+)", stripped)
    return ArraySpec(tuple(sorted(task_ids)), limit, int(first_step[1]) if first_step else 1)


def _parse_task_range(text: str, indexes: str, max_task_id: int) -> range:
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


# ---- Ids of jobs and members as users and programs write them: one number has one meaning --------

OWN_NUMBERS = range(1 << 27, 1 << 31)
"""What members are called that Slurm has given no id: above the largest that Slurm gives by itself
(MaxJobId in slurm.conf(5) ends at 2^26), and within a C int."""


OWN_ID, REAL_ID = "own", "pack"
"""What SLURM_JOB_ID is in a member: such a number, or the id of its pack's Slurm job."""


def is_own_number(job: str) -> bool:
    """Whether an id is one that csub has given to a member (store.numbers)."""
    return job.isascii() and job.isdecimal() and len(job) < 11 and int(job) in OWN_NUMBERS


_JOB = r"(L?\d{1,18}|last)"
_NUMBERS = r"\d{1,18}(?:-\d{1,18})?(?:,\d{1,18}(?:-\d{1,18})?)*"
_OWN = late_pattern(rf"(?a){_JOB}(?:/({_NUMBERS}))?")
_SLURM = late_pattern(rf"(?a){_JOB}_(?:(\d{{1,18}})|(\[[\d,:%-]+\])|(\*))")

Ranges = tuple[tuple[int, int], ...]
"""First and last number of each part."""


def parse_job_id(text: str) -> tuple[str, Ranges | None] | None:
    """Read an id of a job, or of some of its members or tasks.

    Args:
        text: `4711`, `4711/3`, `4711/2-5,8`, `4711_3`, `4711_[1-3,5%2]`, `4711_*`; `L1` and `last`
            stand where 4711 does.

    Returns:
        The job, and the numbers in it, None for all of it; None where the text is no such id.

    Raises:
        ValueError: It is one, but a range in it runs backwards, or it names no number.
    """
    if own := _OWN.fullmatch(text):
        if own[2] is None:
            return own[1], None
        return own[1], tuple(_parse_range(text, part) for part in own[2].split(","))
    if slurm := _SLURM.fullmatch(text):
        if slurm[4]:
            return slurm[1], None
        if slurm[2]:
            return slurm[1], ((int(slurm[2]), int(slurm[2])),)
        try:
            return slurm[1], join_numbers(parse_array(slurm[3]).task_ids)
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from error
    return None


def _parse_range(text: str, part: str) -> tuple[int, int]:
    first, _, last = part.partition("-")
    if int(last or first) < int(first):
        raise ValueError(f"{text!r}: the range {part} runs backwards")
    return int(first), int(last or first)


def join_numbers(numbers: tuple[int, ...]) -> Ranges:
    """Ascending numbers as ranges."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] >= number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def name_members(ids: Iterable[str]) -> str:
    """`54/1-4,7`, as csub reads it; those of several submissions with commas between."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in ids:
        job, _, number = name.partition("/")
        if number.isascii() and number.isdecimal():
            numbers.setdefault(job, []).append(int(number))
        else:
            # A file of another user's may say anything.
            others.append(name)
    named = [f"{job}/{format_task_runs(sorted(own))}" for job, own in numbers.items()]
    return ", ".join([*named, *others])
