"""A job's parameters: what tells it from the others of its sweep or table; pure.

They are texts, as they were written: `0.10` stays `0.10`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

Parameters = tuple[tuple[str, str], ...]
"""Names and values, in the user's order."""

VARIABLE = "SLURM_COLLOC_PARAM_"
NAME_MOST = 64
VALUE_MOST = 4096

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9_]", re.ASCII)


def check_parameter_name(name: str) -> None:
    """Check the name of a parameter.

    Raises:
        ValueError: It is none; the message goes on from the name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "is not a name of a parameter: a letter or '_', then letters, digits, '_', '.' and '-'"
        )
    if len(name) > NAME_MOST:
        raise ValueError(f"has {len(name)} characters, and the name of a parameter at most 64")


def check_parameter_value(value: str) -> None:
    """Check the value of a parameter.

    Raises:
        ValueError: It cannot be an argument; the message goes on from the value.
    """
    if "\0" in value:
        raise ValueError("holds a NUL byte, which no argument can")
    if len(value) > VALUE_MOST:
        raise ValueError(f"has {len(value)} characters, and a parameter at most {VALUE_MOST}")


def build_parameter_variable(name: str) -> str:
    """`SLURM_COLLOC_PARAM_LR`: capitals, and `_` for all that a variable's name cannot have."""
    return VARIABLE + _NOT_IN_VARIABLES.sub("_", name.upper())


def find_equal_variables(names: Iterable[str]) -> tuple[str, str] | None:
    """Two parameters that would be one variable in the member's environment; None for none."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(build_parameter_variable(name), name)
        if other != name:
            return other, name
    return None


def build_parameter_variables(parameters: Parameters) -> dict[str, str]:
    """What a member finds of its parameters in its environment."""
    return {build_parameter_variable(name): value for name, value in parameters}


def format_parameters(parameters: Parameters) -> str:
    """`lr=0.1 bs=32`, for people; values that are not one word are quoted."""
    return " ".join(f"{name}={shlex.quote(value) if value else ''}" for name, value in parameters)


def parse_condition(text: str) -> tuple[str, str]:
    """Read `lr=0.1`, as `--where` has it.

    Raises:
        ValueError: It is something else; the message goes on from the text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("is not a condition: write NAME=VALUE, as in lr=0.1")
    return name, value


def meets(parameters: Parameters, conditions: Sequence[tuple[str, str]]) -> bool:
    """Whether parameters meet conditions: of one name one of them, and of each name.

    Values are equal as texts or as numbers: 0.10 is 0.1.
    """
    own = dict(parameters)
    wanted: dict[str, list[str]] = {}
    for name, value in conditions:
        wanted.setdefault(name, []).append(value)
    return all(
        name in own and any(_are_equal(own[name], value) for value in values)
        for name, values in wanted.items()
    )


def _are_equal(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False
