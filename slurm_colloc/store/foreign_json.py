"""JSON that may come from anywhere: one sentence where it is odd, and nothing is guessed."""

from __future__ import annotations

import codecs
import json
from typing import Any

from slurm_colloc.errors import UsageProblem


def parse_foreign(data: bytes, where: str, *, strict: bool = False) -> Any:
    """Read JSON.

    Args:
        data: Its text in UTF-8; a byte order mark before it is passed over.
        where: Where it stands, for the message.
        strict: Refuse an object that has a key twice; it takes longer.

    Raises:
        UsageProblem: It is none.
    """
    hook = _refuse_doubles if strict else None
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError as error:
        raise UsageProblem(f"{where}: it is not JSON that csub reads: nested too deep") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{where}: it is not JSON (byte {error.start} is not UTF-8)") from error
    except (json.JSONDecodeError, _KeyTwice) as error:
        raise UsageProblem(f"{where}: it is not JSON ({error})") from error
    except ValueError as error:
        # Python reads no whole number of so many digits.
        why = "a number has too many digits"
        raise UsageProblem(f"{where}: it is not JSON that csub reads: {why}") from error


class _KeyTwice(ValueError):
    pass


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _KeyTwice(f"the key {show_foreign(key)} comes twice")
            seen.add(key)
    return found


def show_foreign(value: object) -> str:
    """A value of a foreign file in a message: short, and without escape sequences."""
    try:
        text = ascii(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deep"
    return text if len(text) <= 40 else f"{text[:37]}..."
