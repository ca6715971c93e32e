"""CSV, YAML, TOML, JSON and JSON lines as axes of settings; pure.

A table is one axis, of a setting for each row. A mapping of names to lists is an axis for each
name, as in a sweep on the command line. All values are kept as texts, as they were written: YAML's
`no` is not false, and `0.10` not 0.1.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import cut
from slurm_colloc.submission.jobs.value_lists import JOBS_MOST, Axis, ParameterSetting

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
