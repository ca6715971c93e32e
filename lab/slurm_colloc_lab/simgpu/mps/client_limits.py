"""Limits under MPS as the programs read and show them; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

_GIB = 1 << 30
_MIB = 1 << 20


def parse_percentage(text: str | None) -> float | None:
    """Read CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; None for what is ignored.

    0 and 150 are ignored without a word (580 on an H200), at the daemon 0 is too (550).
    """
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return value if 0.0 < value <= 100.0 else None


def count_sms(percentage: float, sm_count: int) -> int:
    """Multiprocessors that a client gets: whole pairs, rounded down.

    Measured on an H200 with 132: 25 gives 32, 28.57 gives 36.
    """
    return max(2, math.floor(sm_count * percentage / 200 + 1e-9) * 2)


def parse_number(text: str) -> int:
    """Read a number as C's `%d` does: what is none is 0, and 32 bits are kept."""
    match = re.match(r"\s*[+-]?\d+", text)
    value = int(match[0]) & 0xFFFFFFFF if match else 0
    return value - (1 << 32) if value >= 1 << 31 else value


def parse_limit_bytes(text: str) -> int:
    """Read a limit as the control daemon does; 0 takes the limit away.

    The number's next letter counts: G is GiB, anything else MiB, also no letter at all. So 1.5G is
    1 MiB and 8192 is 8192 MiB (550).
    """
    match = re.match(r"\s*\+?(\d+)(.?)", text)
    if match is None:
        return 0
    return int(match[1]) * (_GIB if match[2] in ("G", "g") else _MIB)


def render_limit(limit_bytes: int) -> str:
    """Show a limit as the daemon does: whole GiB from 1 GiB on, so that 1500M is 1G (550, 580)."""
    if limit_bytes >= _GIB:
        return f"{limit_bytes // _GIB}G"
    return f"{limit_bytes // _MIB}M"


def parse_limits_mb(
    text: str | None, uuids: Sequence[str], sizes_mb: Mapping[str, int]
) -> dict[str, int]:
    """Read CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.

    An entry that names no GPU of `uuids` takes every limit with it; one above the GPU's size is
    left out (580 on an H200; G, M, GB and MB work).

    Args:
        text: `0=1G,1=512MB`, or with UUIDs; None where it is not set.
        uuids: The GPUs that the process sees, by cuda_index.
        sizes_mb: All of each GPU's gpu_memory.

    Returns:
        Limits in MiB by UUID.
    """
    limits: dict[str, int] = {}
    for entry in (text or "").split(","):
        if not entry.strip():
            continue
        name, _, value = (part.strip() for part in entry.partition("="))
        match = re.fullmatch(r"(\d+)([GM])B?", value, re.IGNORECASE)
        uuid = _find_gpu(name, uuids)
        if uuid is None or match is None:
            return {}
        limit_mb = int(match[1]) * (1024 if match[2] in "Gg" else 1)
        if limit_mb <= sizes_mb.get(uuid, limit_mb):
            limits[uuid] = limit_mb
    return limits


def tighten(*limits: Mapping[str, int]) -> dict[str, int]:
    """The lowest limit for each GPU: a client can only tighten what its server has."""
    lowest: dict[str, int] = {}
    for given in limits:
        for uuid, limit_mb in given.items():
            lowest[uuid] = min(limit_mb, lowest.get(uuid, limit_mb))
    return lowest


def _find_gpu(name: str, uuids: Sequence[str]) -> str | None:
    if name.isdigit():
        return uuids[int(name)] if int(name) < len(uuids) else None
    found = [uuid for uuid in uuids if name and uuid.lower() == name.lower()]
    return found[0] if found else None
