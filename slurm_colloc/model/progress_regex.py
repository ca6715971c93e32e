"""What `--progress-regex` asks for: how a program's own output tells how far it is."""

from __future__ import annotations

import re

LONGEST = 1000
"""Characters of a regular expression."""

GROUPS = ("step", "samples")
"""Named groups that mean something: numbers counted since the program's own beginning."""


def parse_progress_regex(text: str) -> str:
    """Check the value of `--progress-regex`.

    Args:
        text: A regular expression of Python's. It is looked for in each line of output. With
            `(?P<step>...)` or `(?P<samples>...)` the group is the number reached; without either,
            each match is one step.

    Raises:
        ValueError: It is none, or has other named groups.
    """
    if not text:
        raise ValueError("it is empty: write a regular expression, as in 'step (?P<step>[0-9]+)'")
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters, and may have {LONGEST}")
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is no regular expression of Python's: {error}") from error
    others = sorted(compiled.groupindex.keys() - set(GROUPS))
    if others:
        raise ValueError(
            f"its group {others[0]!r} means nothing: named groups are {' and '.join(GROUPS)}"
        )
    if compiled.match("") is not None and not compiled.groupindex:
        raise ValueError("it matches where there is nothing, so every line would be a step")
    return text
