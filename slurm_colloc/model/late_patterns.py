"""Regular expressions that are compiled at first use: a command loads a hundred and uses ten."""

from __future__ import annotations

import re
from typing import Any, cast


def late_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """What stands for `re.compile(text, flags)`."""
    return cast("re.Pattern[str]", _Uncompiled(text, flags))


class _Uncompiled:
    def __init__(self, text: str, flags: int) -> None:
        self._given = (text, flags)

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)
        # It is found at once from now on.
        setattr(self, name, found)
        return found
