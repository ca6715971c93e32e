"""CSV, YAML, TOML, JSON and JSON lines as axes of settings; pure.

Also: the text of a table that a user wrote, wherever it was written: bytes to lines; the values
that a sweep goes through, and what it makes of them.

A table is one axis, of a setting for each row. A mapping of names to lists is an axis for each
name, as in a sweep on the command line. All values are kept as texts, as they were written: YAML's
`no` is not false, and `0.10` not 0.1.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
import random
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Parameters
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.printable import cut
from slurm_colloc.submission.jobs.call_jobs import JOBS_MOST

# ---- The text of a table that a user wrote, wherever it was written: bytes to lines --------------

TABLE_MOST_BYTES = 64 * 2**20

_OTHER_CODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip


def read_table_text(shown: str, directory: str) -> str:
    """The text of a file, `-` for standard input; lines end with a line feed alone.

    Raises:
        UsageProblem: It cannot be read, is too large, or is no text in UTF-8.
    """
    if shown == "-":
        data = sys.stdin.buffer.read(TABLE_MOST_BYTES + 1)
    else:
        try:
            with open(os.path.join(directory, shown), "rb") as file:
                data = file.read(TABLE_MOST_BYTES + 1)
        except OSError as error:
            raise UsageProblem(
                f"cannot read the table {shown}: {os.strerror(error.errno or 0)}",
                hint="options stand before it" if shown.startswith("-") else "",
            ) from error
    return decode_table(data, shown)


def decode_table(data: bytes, shown: str) -> str:
    """The text in bytes of a table.

    Args:
        data: The bytes.
        shown: What the file is called, for messages.

    Raises:
        UsageProblem: They are too many, or no text in UTF-8.
    """
    if len(data) > TABLE_MOST_BYTES:
        raise UsageProblem(f"{shown} is larger than {TABLE_MOST_BYTES // 2**20} MB")
    for mark, coding in _OTHER_CODINGS:
        if data.startswith(mark):
            raise UsageProblem(f"{shown} is written in {coding}", hint="save it as UTF-8")
    if b"\0" in data:
        raise UsageProblem(f"{shown} is not a table: it holds NUL bytes")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageProblem(
            f"{shown}:{line}: the byte 0x{data[error.start]:02x} is not UTF-8",
            hint="save it as UTF-8",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ---- The values that a sweep goes through, and what it makes of them; pure -----------------------
#
# An axis is a sequence of settings, of which each job of the sweep has one; a setting gives values
# to one or several parameters. A list on the command line is an axis of one parameter, the rows of
# a table are an axis of all its columns. The sweep is the product of its axes, or goes along them.

MANY = 500
"""From more jobs on their numbers begin above what Slurm takes for an element of an array: packs
are elements of one, with numbers that no member has, and there would be none left."""
FIRST_OF_MANY = 10_001

_RANGE = late_pattern(r"(?a)(-?\d{1,9}):(-?\d{1,9})(?::(-?\d{1,9}))?")
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


# ---- CSV, YAML, TOML, JSON and JSON lines as axes of settings; pure ------------------------------

_DELIMITERS = ",;\t"


def parse_table(text: str, shown: str) -> list[Axis]:
    """The axes of a table.

    Args:
        text: Its text.
        shown: What the file is called; its ending says how it is written.

    Raises:
        UsageProblem: It is malformed, holds nothing, or has a value that is no text or number.
    """
    ending = shown.rpartition(".")[2].lower()
    parse = PARSERS.get(ending)
    if parse is None:
        raise UsageProblem(
            f"{shown}: its name does not say which format it has",
            hint=f"name it *.{', *.'.join(PARSERS)}",
        )
    axes = [axis for axis in parse(text, shown) if axis]
    if not axes:
        raise UsageProblem(f"{shown} has no rows")
    for axis in axes:
        if len(axis) > JOBS_MOST:
            raise UsageProblem(
                f"{shown} has {len(axis)} rows: one call takes at most {JOBS_MOST}",
                hint="split it into several files",
            )
    return axes


def _parse_csv(text: str, shown: str) -> list[Axis]:
    first = next((line for line in text.split("\n") if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    # Lines with their ends: a quoted cell may go on in the next one.
    lines = io.StringIO(text)
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    header: list[str] = []
    rows = []
    try:
        for read in reader:
            place = f"{shown}:{reader.line_num}"
            cells = [cell.strip() for cell in read]
            if not any(cells):
                continue
            if not header:
                header = cells
                _check_names(header, place)
                continue
            if len(cells) != len(header):
                raise UsageProblem(
                    f"{place}: {len(cells)} cells, and the header has {len(header)}",
                    hint="quote a cell that has a comma",
                )
            rows.append(_build_setting(zip(header, cells, strict=True), place))
    except csv.Error as error:
        raise UsageProblem(f"{shown}:{reader.line_num}: {error}") from error
    return [tuple(rows)]


def _check_names(names: Sequence[str], place: str) -> None:
    for at, name in enumerate(names):
        if not name:
            raise UsageProblem(f"{place}: column {at + 1} has no name")
        if name in names[:at]:
            raise UsageProblem(f"{place}: two columns are called {cut(name)}")


def _build_setting(pairs: Iterable[tuple[str, str]], place: str) -> ParameterSetting:
    """A row; an empty cell gives nothing."""
    return ParameterSetting(tuple((name, value) for name, value in pairs if value), place)


def _parse_json_lines(text: str, shown: str) -> list[Axis]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{shown}:{number}"
            value = _load_json(line, place)
            if not isinstance(value, Mapping):
                raise UsageProblem(f"{place}: each line must be a JSON object")
            rows.append(_build_row(value, place))
    return [tuple(rows)]


def _parse_json(text: str, shown: str) -> list[Axis]:
    return _build_axes(_load_json(text, shown), shown)


def _load_json(text: str, place: str) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            _check_names([name for name, _ in pairs], place)
        return value

    try:
        return json.loads(
            text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=build
        )
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{place} is not JSON: {error}") from error


def _parse_toml(text: str, shown: str) -> list[Axis]:
    try:
        value = tomllib.loads(text, parse_float=str)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UsageProblem(f"{shown} is not TOML: {error}") from error
    return _build_axes(value, shown)


def _parse_yaml(text: str, shown: str) -> list[Axis]:
    # Imported here: hardly a call needs it.
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        node = yaml.compose(text, Loader=loader)
        return [] if node is None else _build_axes(_read_yaml(yaml, node, shown, 0), shown)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{shown}:{mark.line + 1}" if mark is not None else shown
        problem = getattr(error, "problem", None) or str(error)
        raise UsageProblem(f"{where} is not YAML: {problem}") from error
    except RecursionError as error:
        raise UsageProblem(f"{shown} is not a table: it is nested too deep") from error


_DEPTH_MOST = 4
_YAML_NULLS = frozenset({"null", "Null", "NULL", "~", ""})
"""What YAML reads as null where it is not quoted."""


class _Placed(dict[str, Any]):
    """A mapping that knows where it stands."""

    place = ""


def _read_yaml(yaml: Any, node: Any, shown: str, depth: int) -> Any:
    """A node's value, scalars as they were written."""
    place = f"{shown}:{node.start_mark.line + 1}"
    if depth > _DEPTH_MOST:
        raise UsageProblem(f"{place}: it is nested too deep for a table")
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in _YAML_NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_read_yaml(yaml, item, shown, depth + 1) for item in node.value]
    value = _Placed()
    value.place = place
    for key, item in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageProblem(f"{place}: a name is one word")
        if key.value in value:
            line = key.start_mark.line + 1
            raise UsageProblem(f"{shown}:{line}: {cut(key.value)} stands there twice")
        value[key.value] = _read_yaml(yaml, item, shown, depth + 1)
    return value


def _build_axes(value: Any, shown: str) -> list[Axis]:
    """The axes of a list of rows, or of a mapping.

    In a mapping each list of values is an axis; a list of mappings are rows, and what stands alone
    holds for all.
    """
    if isinstance(value, list):
        return [_build_rows(value, shown, "row")]
    if not isinstance(value, Mapping):
        raise UsageProblem(
            f"{shown} is not a table: a list of rows, or names with values, is needed"
        )
    alone: list[tuple[str, Any]] = []
    axes: list[Axis] = []
    for name, item in value.items():
        if isinstance(item, list) and any(isinstance(part, Mapping) for part in item):
            axes.append(_build_rows(item, shown, name))
        elif isinstance(item, list):
            place = f"{shown}, {cut(name)}"
            if not item:
                raise UsageProblem(f"{place}: the list is empty")
            axes.append(tuple(ParameterSetting(((name, _as_text(v, place)),), place) for v in item))
        else:
            alone.append((name, item))
    if alone:
        common = _build_row(dict(alone), shown)
        axes.insert(0, (common,)) if axes else axes.append((common,))
    return axes


def _build_rows(items: Sequence[Any], shown: str, name: str) -> Axis:
    rows = []
    for number, item in enumerate(items, start=1):
        place = getattr(item, "place", "") or f"{shown}, {cut(name)} {number}"
        if not isinstance(item, Mapping):
            raise UsageProblem(f"{place}: a row must have names with values")
        rows.append(_build_row(item, place))
    return tuple(rows)


def _build_row(value: Mapping[str, Any], place: str) -> ParameterSetting:
    pairs = [(name, _as_text(item, f"{place}, {cut(name)}")) for name, item in value.items()]
    _check_names([name for name, _ in pairs], place)
    return _build_setting(pairs, place)


def _as_text(value: Any, place: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    kinds = {type(None): "null", list: "a list", dict: "a mapping", _Placed: "a mapping"}
    kind = kinds.get(type(value), "a date")
    raise UsageProblem(f"{place}: a value must be a text or a number, not {kind}")


PARSERS: Mapping[str, Callable[[str, str], list[Axis]]] = {
    "csv": _parse_csv,
    "tsv": _parse_csv,
    "yaml": _parse_yaml,
    "yml": _parse_yaml,
    "toml": _parse_toml,
    "json": _parse_json,
    "jsonl": _parse_json_lines,
}
"""What reads a file, by the ending of its name."""
