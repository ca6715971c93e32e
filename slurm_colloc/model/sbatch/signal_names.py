"""Signals as sbatch and scancel take them."""

from __future__ import annotations

import re
import signal

from slurm_colloc.model.job import SignalRequest

_REQUEST = re.compile(r"(?:(?P<flags>[BR]{1,2}):)?(?P<signal>\w+)(?:@(?P<seconds>\d+))?")
DEFAULT_SECONDS_BEFORE_END = 60


def parse_signal(text: str) -> int:
    """Read `USR1`, `SIGUSR1` or `10`.

    Raises:
        ValueError: There is no such signal.
    """
    if text.isdigit() and int(text) in set(signal.Signals):
        return int(text)
    try:
        return int(signal.Signals["SIG" + text.upper().removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"there is no signal {text!r}") from None


def parse_signal_request(text: str) -> SignalRequest:
    """Read `[{R|B}:]SIG[@SECONDS]` of --signal.

    Raises:
        ValueError: It is something else.
    """
    match = _REQUEST.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not of the form [B:]SIGNAL[@SECONDS]")
    seconds = int(match["seconds"]) if match["seconds"] else DEFAULT_SECONDS_BEFORE_END
    if seconds > 0xFFFF:
        raise ValueError(f"{text!r}: at most 65535 seconds before the end")
    return SignalRequest(parse_signal(match["signal"]), seconds, "B" in (match["flags"] or ""))
