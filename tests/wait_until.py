"""Waiting for what happens elsewhere, the same for all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 60.0
_LEAST_PAUSE_S = 0.01


def wait_until(condition: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true and return it; fail with `what` where it does not.

    Between two looks it waits as long as one takes. Many looks are a whole csub; waiting must not
    keep a core from what is waited for.
    """
    deadline = time.monotonic() + patience_s
    while True:
        begin_s = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience_s:g} s: {what}")
        time.sleep(min(1.0, max(_LEAST_PAUSE_S, time.monotonic() - begin_s)))
