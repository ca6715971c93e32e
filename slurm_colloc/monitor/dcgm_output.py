"""What `dcgmi discovery -l` and `dcgmi dmon` print; pure.

Of fields dcgmi prints a head, then a line for each GPU and period, and the head again after some
periods (dcgmi/DeviceMonitor.cpp of DCGM):

    #Entity   GRACT        SMACT        TENSO        DRAMA
    ID
    GPU 0     0.931        0.512        0.204        N/A

Older ones put a blank behind the `#`. Its numbers of GPUs are its own; which is which UUID's
stands in what discovery prints:

    | 0      | Name: NVIDIA A100-SXM4-40GB                                          |
    |        | PCI Bus ID: 00000000:07:00.0                                         |
    |        | Device UUID: GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1                |
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_colloc.monitor.gpu_counters import limit_share

FIELDS: Mapping[int, tuple[str, str]] = {
    1001: ("GRACT", "engine_active"),
    1002: ("SMACT", "sm_active"),
    1004: ("TENSO", "tensor_active"),
    1005: ("DRAMA", "dram_active"),
}
"""DCGM's fields (DCGM_FI_PROF_* of dcgm_fields.h): their names in the head, and here."""

METRICS = {short: (name, number) for number, (short, name) in FIELDS.items()}
"""By the name in the head: the metric's name here, and the field."""

_NUMBER = re.compile(r"\|\s*(?P<number>[0-9]+)\s*\|")
_UUID = re.compile(r"Device UUID:\s*(?P<uuid>GPU-[0-9A-Fa-f-]+)")


class ActivityTable:
    """Reads the lines of dmon one by one.

    Attributes:
        columns: The names of the last head; empty before the first.
    """

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()

    def read(self, line: str) -> tuple[int, dict[str, float | None]] | None:
        """Read a line.

        Returns:
            DCGM's number of the GPU and each known metric, 0 to 1, None where it is not
            available; None for a head, and for a line that is none of a whole GPU.
        """
        words = line.split()
        if words and words[0].startswith("#"):
            names = line.lstrip(" #").split()
            self.columns = tuple(names[1:])
            return None
        if len(words) < 2 or words[0] != "GPU" or not words[1].isdecimal():
            return None
        values = words[2:]
        if not self.columns or len(values) != len(self.columns):
            return None
        found = {
            METRICS[column][0]: _parse_share(value)
            for column, value in zip(self.columns, values, strict=True)
            if column in METRICS
        }
        return int(words[1]), found


def _parse_share(text: str) -> float | None:
    try:
        return limit_share(float(text))
    except ValueError:
        return None


def parse_discovery(text: str) -> dict[str, int]:
    """DCGM's number of each GPU, by UUID."""
    found: dict[str, int] = {}
    number: int | None = None
    for line in text.splitlines():
        head, uuid = _NUMBER.match(line.strip()), _UUID.search(line)
        if head is not None:
            number = int(head["number"])
        if uuid is not None and number is not None:
            found[uuid["uuid"]] = number
            number = None
    return found
