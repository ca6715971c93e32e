"""In which words a runner says why no more members run, and how those words are recognised."""

from __future__ import annotations

import re

NO_MORE = "no more than "
BEING_MEASURED = "the pack is being measured"
NO_MEMORY = "the GPU has no memory left for it: "
DOOR_FIRST = "one at the door goes first: "
TOO_LITTLE_TIME = "the pack has only "

_AT_ONCE = re.compile(r"\d+ runs? at once")


def say_no_more(degree: int) -> str:
    """`no more than 3 run at once`."""
    return f"{NO_MORE}{say_at_once(degree)}"


def say_at_once(degree: int) -> str:
    """`3 run at once`."""
    return f"{degree} {'runs' if degree == 1 else 'run'} at once"


def is_degree_reason(text: str) -> bool:
    """Whether a runner has written how many may run at once, and not something else."""
    begins = (BEING_MEASURED, NO_MORE, NO_MEMORY, DOOR_FIRST)
    return text.startswith(begins) or _AT_ONCE.match(text) is not None


def is_time_reason(text: str) -> bool:
    """Whether that a member waits was put down to the time that is left of its pack."""
    return text.startswith(TOO_LITTLE_TIME)
