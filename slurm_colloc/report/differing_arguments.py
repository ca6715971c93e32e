"""Arguments of members as a table shows them: what differs stands out; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.model.parameters import format_parameters

_LONG = 24


def show_arguments(calls: Sequence[Sequence[str]]) -> list[str]:
    """Arguments as a shell takes them; long ones that all have in common are left out.

    Args:
        calls: The arguments of each member.

    Returns:
        A text for each. Where all begin alike with more than a few words, `...` stands for that.
    """
    calls = [tuple(call) for call in calls]
    kept = _count_common(calls) if len(set(calls)) > 1 else 0
    # An option stays with the value in which the calls differ.
    while kept and calls[0][kept - 1].startswith("-") and "=" not in calls[0][kept - 1]:
        kept -= 1
    if kept and len(shlex.join(calls[0][:kept])) <= _LONG:
        kept = 0
    return [f"{'... ' if kept else ''}{shlex.join(call[kept:])}".rstrip() for call in calls]


def tell_members_apart(members: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a table shows of members of a summary next to their names.

    Args:
        members: Their parts of the summary.

    Returns:
        A text for each: its parameters, or its arguments where it has none.
    """
    if not any(member["parameters"] for member in members):
        return show_arguments([member["arguments"] or () for member in members])
    # One that joined a sweep, or was taken over, may have arguments alone.
    return [
        format_parameters(tuple(m["parameters"].items()))
        if m["parameters"]
        else shlex.join(m["arguments"] or ())
        for m in members
    ]


def _count_common(calls: Sequence[Sequence[str]]) -> int:
    """How many words all calls begin with."""
    count = 0
    for words in zip(*calls, strict=False):
        if len(set(words)) > 1:
            break
        count += 1
    return count
