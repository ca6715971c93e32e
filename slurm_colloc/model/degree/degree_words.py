"""What is said of how many members run at once, in words that readers know again; pure."""

from __future__ import annotations

NO_MORE = "no more than "
BEING_MEASURED = "the pack is being measured"
MEMORY_FIRST = "its GPU memory is not known yet: "
NO_MEMORY = "the GPU has no memory left for it: "
TOO_LITTLE_TIME = "the pack has only "


def say_no_more(degree: int) -> str:
    """`no more than 3 run at once`."""
    return f"{NO_MORE}{degree} {'runs' if degree == 1 else 'run at once'}"


def is_degree_reason(text: str) -> bool:
    """Whether a runner has written that a member waits because of what it has measured."""
    return text.startswith((BEING_MEASURED, NO_MORE, MEMORY_FIRST, NO_MEMORY))


def is_time_reason(text: str) -> bool:
    """Whether that a member waits was put down to the time that is left of its pack."""
    return text.startswith(TOO_LITTLE_TIME)
