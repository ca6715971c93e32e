"""Ids of jobs and members as users and programs write them: one number has one meaning.

`4711/3` is csub's own way, `4711_3` and `4711_[1-3,5]` are Slurm's for tasks of an array. What
Slurm itself calls `4711_3` is never another thing: packs are elements with other indices
(`submission.packs.call_batches`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_colloc.model.sbatch.arrays import format_task_runs, parse_array

_JOB = r"(L?\d{1,18}|last)"
_NUMBERS = r"\d{1,18}(?:-\d{1,18})?(?:,\d{1,18}(?:-\d{1,18})?)*"
_OWN = re.compile(rf"{_JOB}(?:/({_NUMBERS}))?", re.ASCII)
_SLURM = re.compile(rf"{_JOB}_(?:(\d{{1,18}})|(\[[\d,:%-]+\])|(\*))", re.ASCII)

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
