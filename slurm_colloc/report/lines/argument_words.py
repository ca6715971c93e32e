"""A member's arguments in one column: all of them, or what differs within its submission; pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from slurm_colloc.model.argument_parameters import read_parameters

Job = tuple[str, str, tuple[str, ...]]
"""Submission, script and arguments of a member."""


def describe_arguments(jobs: Sequence[Job]) -> list[str]:
    """What tells each member from others of its submission, `lr=0.1 seed=3`.

    Where all of a submission's members of one script have the same arguments, or there is only
    one, these are shown whole, as a shell would read them.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (submission, script, _) in enumerate(jobs):
        groups.setdefault((submission, script), []).append(place)
    texts = [""] * len(jobs)
    for places in groups.values():
        arguments = [jobs[place][2] for place in places]
        for place, text in zip(places, _describe(arguments), strict=True):
            texts[place] = text
    return texts


def _describe(arguments: Sequence[tuple[str, ...]]) -> Iterable[str]:
    if len(set(arguments)) == 1:
        return [shlex.join(arguments[0])] * len(arguments)
    found = [read_parameters(words) for words in arguments]
    names = list(dict.fromkeys(name for values in found for name in values))
    differing = [name for name in names if len({values.get(name) for values in found}) > 1]
    if not differing:
        # Only their order differs, or a value that another follows.
        return [shlex.join(words) for words in arguments]
    return [
        " ".join(
            _write(name, values[name]) if name in values else f"{name}=-" for name in differing
        )
        for values in found
    ]


def _write(name: str, value: str) -> str:
    text = shlex.quote(value)
    # A word of no option has a place and no name.
    return text if name.startswith("arg") and name[3:].isdigit() else f"{name}={text}"
