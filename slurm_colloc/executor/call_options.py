"""Options of csub as Python writes them, and how calls are shown in csub's tables."""

from __future__ import annotations

import functools
import inspect
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.parameters import Parameters, check_parameter_name
from slurm_colloc.model.printable import escape_controls

ARGUMENT_LONGEST = 120
"""Characters of an argument as tables show it."""

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 2 * ARGUMENT_LONGEST

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def build_words(options: Mapping[str, object]) -> list[str]:
    """Words of a command line for keyword arguments: `gpu_mem="10G"` is `--gpu-mem=10G`.

    Args:
        options: By name. True is an option without a value; None and False leave it out; a list
            is joined by commas.

    Raises:
        UsageProblem: A value is of a kind that no option has.
    """
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if value is None or value is False:
            continue
        words.append(f"--{option}" if value is True else f"--{option}={_write(name, value)}")
    return words


def _write(name: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_write(name, item) for item in value)
    if not isinstance(value, str | int | float | os.PathLike):
        raise UsageProblem(
            f"{name}={reprlib.repr(value)}: an option is a text, a number, True, or a list of them"
        )
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if "\0" in text:
        raise UsageProblem(f"{name}={text!r}: no option may hold a NUL")
    return text


def name_function(function: Callable[..., Any]) -> str:
    """A job name for a callable: the function's, or its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return _NOT_IN_A_NAME.sub("", str(name)) or "call"


def describe_function(function: Callable[..., Any]) -> str:
    """`train.fit`: where a callable comes from, on one line, as the batch script's comment."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return escape_controls(f"{named.__module__}.{named.__qualname__}")


def describe_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """A call's arguments as csub's tables show them, and as usage profiles tell jobs apart.

    Returns:
        `lr=0.1` for each, with the name of the function's parameter; the value alone where it
        has none.
    """
    names: list[str] = []
    try:
        parameters = inspect.signature(function).parameters.values()
        names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)
        ]
    except (TypeError, ValueError):
        # Some built-in functions have no signature.
        pass
    named = [
        f"{names[place]}={_show(value)}" if place < len(names) else _show(value)
        for place, value in enumerate(args)
    ]
    return (*named, *(f"{name}={_show(value)}" for name, value in kwargs.items()))


def find_parameters(arguments: Sequence[str]) -> Parameters:
    """Those of a call's arguments that have a name, hydra's `+lr=0.1` among them."""
    found = {}
    for text in arguments:
        name, equals, value = text.lstrip("+").partition("=")
        if not equals:
            continue
        try:
            check_parameter_name(name)
        except ValueError:
            continue
        found[name] = value
    return tuple(found.items())


def _show(value: Any) -> str:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = _ADDRESS.sub("", _SHORT.repr(value))
        except Exception:  # noqa: BLE001  # a class may fail at showing itself
            text = f"<{type(value).__name__}>"
    text = escape_controls(text)
    return text if len(text) <= ARGUMENT_LONGEST else f"{text[: ARGUMENT_LONGEST - 3]}..."
