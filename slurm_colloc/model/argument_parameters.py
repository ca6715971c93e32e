"""The parameters among a script's arguments: `--lr 0.1`, `--lr=0.1`, `lr=0.1`; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAMED = re.compile(r"(?:--?|\+\+?)?(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)
"""`--lr=0.1`, `-lr=0.1`, and hydra's `lr=0.1`, `+optim.lr=0.1`, `++lr=0.1`."""
_OPTION = re.compile(r"--?(?P<name>[A-Za-z_][\w.-]*)")


def read_parameters(arguments: Sequence[str]) -> dict[str, str]:
    """What each parameter is set to, in order.

    An option that no value follows is `true`. Words of no option are `arg1`, `arg2` by their place
    among such words. Of a parameter that comes twice the last one counts, as most programs have it.
    """
    found: dict[str, str] = {}
    place = plain = 0
    while place < len(arguments):
        word = arguments[place]
        place += 1
        if named := _NAMED.fullmatch(word):
            found[named["name"]] = named["value"]
        elif option := _OPTION.fullmatch(word):
            value = "true"
            if place < len(arguments) and not _is_option(arguments[place]):
                value = arguments[place]
                place += 1
            found[option["name"]] = value
        elif word != "--":
            plain += 1
            found[f"arg{plain}"] = word
    return found


def _is_option(word: str) -> bool:
    """A word that is an option itself; `-1` and `-.5` are values."""
    return word == "--" or bool(_OPTION.fullmatch(word) or _NAMED.fullmatch(word))
