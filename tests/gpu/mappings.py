"""What the memory of a process consists of, by proc(5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LARGEST = 10
_STATUS = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem", "Threads")
_SIZE = re.compile(r"^(\w+):[ \t]+(\d+)", re.MULTILINE)
# The line that begins a mapping: addresses, rights, offset, device, inode, and a name or none.
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


def read_mappings(pid: int) -> dict[str, Any]:
    """Threads and memory of a process in KiB, and its largest mappings; empty where it is gone.

    Args:
        pid: A process that may be looked into.
    """
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        rollup = (folder / "smaps_rollup").read_text()
        every = (folder / "smaps").read_text()
    except OSError:
        return {}
    by_name = sum_by_name(every)
    largest = sorted(by_name, key=lambda name: by_name[name]["Rss"], reverse=True)[:LARGEST]
    sizes = parse_sizes(status)
    return {
        "status": {name: sizes[name] for name in _STATUS if name in sizes},
        "smaps_rollup_kb": parse_sizes(rollup),
        "names": len(by_name),
        "largest_kb": {name: by_name[name] for name in largest},
    }


def parse_sizes(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    return {name: int(number) for name, number in _SIZE.findall(text)}


def sum_by_name(smaps: str) -> dict[str, dict[str, int]]:
    """Rss, private memory that was written and all private memory, in KiB, by the file's name.

    What belongs to no file is "[anonymous]".
    """
    sums: dict[str, dict[str, int]] = {}
    own: dict[str, int] = {}
    for line in smaps.splitlines():
        begin = _MAPPING.match(line)
        if begin:
            name = begin[1] or "[anonymous]"
            own = sums.setdefault(name, {"Rss": 0, "Private_Dirty": 0, "Private": 0})
            continue
        for name, size in parse_sizes(line).items():
            if name in ("Rss", "Private_Dirty"):
                own[name] += size
            if name in ("Private_Clean", "Private_Dirty"):
                own["Private"] += size
    return sums
