"""What all programs of the fake have in common: their options, and how they fail.

Whatever a program does not know is an error that no test can miss: it is written down, and the
test that used the fake fails at its end even where csub goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from tests.fake_slurm.state import find_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

UNKNOWN = 64
"""Exit status where the fake is asked for what it does not have."""

_DOWN = "Unable to contact slurm controller (connect failure)"


class Line:
    """A command line, read as far as a program says it knows it.

    Args:
        program: The program's name.
        argv: Its arguments.
        known: Its options, each with 0 or 1 for whether it takes a value; short ones with one dash.
        same: Short names, and other words for the same option.
    """

    def __init__(
        self, program: str, argv: Sequence[str], known: dict[str, int], same: dict[str, str]
    ) -> None:
        self.program = program
        self.options: dict[str, str] = {}
        self.words: list[str] = []
        left = list(argv)
        while left:
            word = left.pop(0)
            if not word.startswith("-") or word == "-":
                # As with getopt's `+`: what follows the first word is the command's own.
                self.words += [word, *left]
                return
            name, separator, value = word.partition("=")
            if not word.startswith("--") and len(word) > 2:
                name, separator, value = word[:2], "=", word[2:]
            name = same.get(name, name)
            if name not in known:
                refuse(program, f"option {word}")
            if known[name] and not separator:
                if not left:
                    refuse(program, f"{word} without a value")
                value = left.pop(0)
            elif separator and not known[name]:
                refuse(program, f"a value of {word}")
            self.options[name] = value

    def get(self, name: str, default: str = "") -> str:
        """The value of an option."""
        return self.options.get(name, default)


def begin(program: str, argv: Sequence[str], no_answer: str) -> None:
    """Write the call down, and end it where the controller is away.

    Args:
        program: The program's name.
        argv: Its arguments.
        no_answer: How it begins to say that.
    """
    directory = find_directory()
    with open(f"{directory}/calls", "a") as file:
        file.write(json.dumps([program, *argv]) + "\n")
    if os.path.exists(f"{directory}/away"):
        fail(f"{no_answer}: {_DOWN}")


def fail(words: str, status: int = 1) -> NoReturn:
    """End as Slurm's programs do, with one line on standard error."""
    sys.stderr.write(f"{words}\n")
    sys.exit(status)


def refuse(program: str, what: str) -> NoReturn:
    """End because the fake does not have this."""
    words = f"the fake {program} does not know {what}"
    with open(f"{find_directory()}/unknown", "a") as file:
        file.write(f"{words}\n")
    fail(words, UNKNOWN)


def parse_length_s(program: str, text: str) -> int | None:
    """A time limit: minutes, `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS`; None for none."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    days, separator, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in (*parts, days or "0")) or len(parts) > 3:
        refuse(program, f"the time {text}")
    numbers = [int(part) for part in parts]
    if separator:
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) == 1:
        numbers = [0, numbers[0], 0]
    elif len(numbers) == 2:
        numbers = [0, *numbers]
    return int(days or 0) * 86400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]


def parse_moment(program: str, text: str, now: float) -> float:
    """When a job may begin: `now`, `now+1hour`, `now+30` or a date with a time of day."""
    import time

    units = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400}
    if text.startswith("now"):
        number = text[4:].rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = text[4 + len(number) :].rstrip("s")
        if not text[3:]:
            return 0.0
        if text[3] != "+" or not number.isdigit() or unit not in units:
            refuse(program, f"the moment {text}")
        return now + int(number) * units[unit]
    for shape in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"):
        try:
            return time.mktime(time.strptime(text, shape))
        except ValueError:
            continue
    refuse(program, f"the moment {text}")
