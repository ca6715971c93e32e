"""The values that a sweep goes through, and what it makes of them; pure.

An axis is a sequence of settings, of which each job of the sweep has one; a setting gives values
to one or several parameters. A list on the command line is an axis of one parameter, the rows of a
table are an axis of all its columns. The sweep is the product of its axes, or goes along them.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.parameters import Parameters
from slurm_colloc.model.printable import cut

JOBS_MOST = 50_000
"""Jobs of one call: more, and Slurm and the file system have to do with little else."""

MANY = 500
"""From more jobs on their numbers begin above what Slurm takes for an element of an array: packs
are elements of one, with numbers that no member has, and there would be none left."""
FIRST_OF_MANY = 10_001

_RANGE = re.compile(r"(-?\d{1,9}):(-?\d{1,9})(?::(-?\d{1,9}))?", re.ASCII)
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class ParameterSetting:
    """Values of parameters that belong together.

    Attributes:
        values: The parameters with their values.
        place: Where it stands, for messages: `params.csv:3`, `the command line`.
    """

    values: Parameters
    place: str


Axis = tuple[ParameterSetting, ...]
"""What each job of the sweep has one of."""


def split_values(text: str) -> list[str]:
    """The values of `0.1,0.2`, of `0:5` (0 to 4, as Python counts) or `0:10:2`; one for the rest.

    A comma inside of brackets or quotes divides nothing, and neither does one behind a backslash;
    quotes around a whole value go away.

    Raises:
        ValueError: A value is empty, a bracket or a quote stays open, or a range has no numbers;
            the message goes on from the text.
    """
    found = _RANGE.fullmatch(text)
    if found:
        first, end, step = int(found[1]), int(found[2]), int(found[3] or 1)
        numbers = range(first, end, step) if step else ()
        if not numbers:
            raise ValueError("is a range without numbers: 0:5 means 0 1 2 3 4, 0:10:2 every second")
        if len(numbers) > JOBS_MOST:
            raise ValueError(f"is a range of {len(numbers)} numbers, but {JOBS_MOST} are allowed")
        return [str(number) for number in numbers]
    values = _split(text)
    if len(values) > 1 and "" in values:
        raise ValueError("has an empty value among its commas")
    return values


def _split(text: str) -> list[str]:
    values, current, quote, depth = [], "", "", 0
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            following = next(letters, "")
            current += following if following == "," else letter + following
        elif quote:
            quote = "" if letter == quote else quote
            current += letter
        elif letter in "'\"" and not current:
            quote = letter
            current += letter
        elif letter == "," and depth == 0:
            values.append(_unquote(current))
            current = ""
        else:
            depth += (letter in _OPENING) - (letter in _CLOSING)
            current += letter
    values.append(_unquote(current))
    if (quote or depth != 0) and "," in text:
        raise ValueError("has a bracket or a quote without its other half")
    return values


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    return text[1:-1] if is_quoted else text


def build_axis(name: str, values: Sequence[str], place: str) -> Axis:
    """The axis of one parameter."""
    return tuple(ParameterSetting(((name, value),), place) for value in values)


def combine(
    axes: Sequence[Axis], *, zipped: bool = False, sample: tuple[int, int] | None = None
) -> list[ParameterSetting]:
    """The settings of a sweep's jobs: all combinations, the last axis fastest.

    Args:
        axes: The axes, each with one setting or more.
        zipped: Go along all axes at once; one with a single setting holds for each job.
        sample: How many to draw from all, in their order, and the seed.

    Raises:
        UsageProblem: A parameter stands in two axes, they are of different lengths, or there are
            too many combinations.
    """
    _refuse_twice(axes)
    lengths = [len(axis) for axis in axes]
    if zipped:
        _refuse_uneven(axes)
        count = max(lengths)
    else:
        count = math.prod(lengths)
    chosen: Sequence[int] = range(count)
    if sample is not None and sample[0] < count:
        chosen = sorted(random.Random(sample[1]).sample(range(count), sample[0]))
    if len(chosen) > JOBS_MOST:
        raise UsageProblem(
            f"a sweep of {len(chosen)} jobs: one call takes at most {JOBS_MOST}",
            hint="--sample=N chooses N of them",
        )
    if zipped:
        return [_merge([axis[i if len(axis) > 1 else 0] for axis in axes]) for i in chosen]
    return [_merge(_pick(axes, lengths, index)) for index in chosen]


def _pick(axes: Sequence[Axis], lengths: Sequence[int], index: int) -> list[ParameterSetting]:
    picked = []
    for axis, length in zip(reversed(axes), reversed(lengths), strict=True):
        index, at = divmod(index, length)
        picked.append(axis[at])
    return picked[::-1]


def _merge(settings: Sequence[ParameterSetting]) -> ParameterSetting:
    place = next((s.place for s in settings if s.place != settings[0].place), settings[0].place)
    return ParameterSetting(tuple(pair for setting in settings for pair in setting.values), place)


def _refuse_twice(axes: Sequence[Axis]) -> None:
    seen: dict[str, str] = {}
    for axis in axes:
        names = dict.fromkeys(name for setting in axis for name, _ in setting.values)
        for name in names:
            if name in seen:
                places = dict.fromkeys((seen[name], axis[0].place))
                raise UsageProblem(
                    f"the parameter {cut(name)} is given twice: {' and '.join(places)}",
                    hint="leave one of them out",
                )
            seen[name] = axis[0].place


def _refuse_uneven(axes: Sequence[Axis]) -> None:
    longer = [axis for axis in axes if len(axis) > 1]
    for axis in longer[1:]:
        if len(axis) != len(longer[0]):
            first, second = (f"{cut(a[0].values[0][0])} has {len(a)}" for a in (longer[0], axis))
            raise UsageProblem(f"--zip goes along lists of one length: {first} values, {second}")


def list_numbers(count: int) -> range:
    """The numbers of so many jobs of one call: from 1 on, or of many from 10001 on."""
    first = FIRST_OF_MANY if count > MANY else 1
    return range(first, first + count)


def parse_sample(text: str) -> tuple[int, int]:
    """Read `20` or `20:SEED`: how many, and the seed, 0 where none is given.

    Raises:
        ValueError: It is something else.
    """
    count, colon, seed = text.partition(":")
    if not re.fullmatch(r"0*[1-9]\d{0,8}", count, re.ASCII) or (
        colon and not re.fullmatch(r"\d{1,9}", seed, re.ASCII)
    ):
        raise ValueError("a number of at least 1 is needed, or N:SEED to draw others")
    return int(count), int(seed or 0)
