"""Counters that NVML has as fields: time of throttling, and bytes over PCIe and NVLink."""

from __future__ import annotations

import time
from typing import Any

# Field ids of nvml.h (CUDA 13); throttling in ns. 74 is the software power cap.
_THROTTLE: dict[int, str] = {
    74: "throttle_power_s",
    269: "throttle_thermal_s",
    270: "throttle_thermal_s",
    271: "throttle_brake_s",
}
# Bytes, and KiB over all links together. Only where GPM gives no rates.
_TRAFFIC: dict[int, tuple[str, int]] = {
    197: ("pcie_tx_mib_s", 1),
    198: ("pcie_rx_mib_s", 1),
    138: ("nvlink_tx_mib_s", 1024),
    139: ("nvlink_rx_mib_s", 1024),
}
_ALL_LINKS = 0xFFFFFFFF
_MIB = 1 << 20
# nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")

Found = tuple[float | None, str, int]


class FieldReader:
    """Reads the counters of one GPU in one call.

    Args:
        nvml: The binding.
        handle: The GPU.
        with_traffic: Read what has gone over PCIe and NVLink, too.
    """

    def __init__(self, nvml: Any, handle: Any, *, with_traffic: bool) -> None:
        self._nvml = nvml
        self._handle = handle
        self._ids: list[int] = [*_THROTTLE, *(_TRAFFIC if with_traffic else ())]
        self._before: dict[int, tuple[float, float]] = {}
        self.metrics = list(
            dict.fromkeys(
                [*_THROTTLE.values()]
                + [name for name, _ in (_TRAFFIC.values() if with_traffic else ())]
            )
        )

    def give_up(self) -> None:
        """Read nothing from now on: no call of this kind works here."""
        self._ids = []

    def read(self) -> dict[str, Found]:
        """Read once.

        Returns:
            By metric its value (None where there is none yet), its source, and NVML's return code.

        Raises:
            nvml.NVMLError: No field could be read.
        """
        if not self._ids:
            return {}
        asked = [(one, _ALL_LINKS) if one in (138, 139) else one for one in self._ids]
        now = time.monotonic()
        answers = self._nvml.nvmlDeviceGetFieldValues(self._handle, asked)
        found: dict[str, Found] = {}
        for number, answer in zip(tuple(self._ids), answers, strict=True):
            code = int(answer.nvmlReturn)
            value = None if code else _read_value(answer)
            name = _THROTTLE.get(number)
            if name is not None:
                _add(found, name, None if value is None else value / 1e9, f"field:{number}", code)
            else:
                name, unit_bytes = _TRAFFIC[number]
                rate = (
                    None if value is None else self._compute_rate(number, value * unit_bytes, now)
                )
                found[name] = (rate, f"field:{number}", code)
            if code in (2, 3):
                self._ids.remove(number)
        return found

    def _compute_rate(self, number: int, value: float, now: float) -> float | None:
        before = self._before.get(number)
        self._before[number] = (now, value)
        # A counter that is smaller than before has wrapped, nobody knows how often.
        if before is None or value < before[1] or now <= before[0]:
            return None
        return (value - before[1]) / _MIB / (now - before[0])


def _add(found: dict[str, Found], name: str, value: float | None, source: str, code: int) -> None:
    """Sum what several counters say of one thing, as far as they can be read."""
    known = found.get(name)
    if known is None or known[0] is None:
        found[name] = (value, source, code)
    elif value is not None:
        found[name] = (known[0] + value, f"{known[1]}+{source}", 0)


def _read_value(answer: Any) -> float | None:
    kind = int(answer.valueType)
    return float(getattr(answer.value, _MEMBERS[kind])) if kind < len(_MEMBERS) else None
