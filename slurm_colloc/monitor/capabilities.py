"""What could be read on this node, by which call, and why not; pure."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
UNSUPPORTED = "unsupported"
NO_PERMISSION = "no_permission"
ERROR = "error"

# nvml.h (CUDA 13): NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_UNSUPPORTED_CODES = frozenset({3, 13, 25, 26})
_NO_PERMISSION_CODE = 4
# UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH.
SESSION_CODES = frozenset({1, 9, 12, 18})
"""After these NVML itself is gone."""
# GPU_IS_LOST, RESET_REQUIRED.
GPU_CODES = frozenset({15, 16})
"""After these one GPU is gone."""


@dataclass(frozen=True)
class Capability:
    """How one metric is had.

    Attributes:
        source: The call, such as `gpm:2` or `nvmlDeviceGetPowerUsage`; empty where none works.
        state: `ok`, `unsupported`, `no_permission` or `error`.
        detail: What the driver said; empty where it works.
    """

    source: str
    state: str
    detail: str = ""


def classify_error(code: int | None) -> str:
    """The state that an NVML return code stands for; None where it was no such code."""
    if code in _UNSUPPORTED_CODES:
        return UNSUPPORTED
    return NO_PERMISSION if code == _NO_PERMISSION_CODE else ERROR


class Capabilities:
    """What is known of every metric so far.

    A metric that has once been read stays `ok`: that it is missing later is a gap. Where several
    GPUs differ, the best of them counts.
    """

    def __init__(self) -> None:
        self._known: dict[str, Capability] = {}

    def note(self, metric: str, source: str, state: str, detail: str = "") -> None:
        """Say how an attempt to read a metric went."""
        known = self._known.get(metric)
        if known is None or (known.state != OK and (known.state, known.detail) != (state, detail)):
            self._known[metric] = Capability(source, state, detail)

    def prefer(self, metric: str, source: str) -> None:
        """Say that a metric is read by this source from now on, whatever else gives it."""
        self._known[metric] = Capability(source, OK)

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The whole, for a JSON file."""
        return {
            metric: {"source": one.source, "state": one.state, "detail": one.detail}
            for metric, one in sorted(self._known.items())
        }
