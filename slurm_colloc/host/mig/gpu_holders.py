"""Who keeps a GPU from being changed: by NVML's list, and by who has its device files open.

DCGM, nvidia-persistenced and a slurmstepd that accounts for energy compute nothing, and hold a GPU
all the same. They are named and left alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from slurm_colloc.host.mig.mig_state import MigGpu
from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc.model.printable import escape_controls

_MOST_NAMED = 4
_CAPS = "/dev/nvidia-caps/nvidia-cap"
_CAP_MINORS = "/proc/driver/nvidia-caps/mig-minors"


def describe_holders(gpu: MigGpu | None) -> str:
    """Name processes that use a GPU or have it open, such as `process 812 (nv-hostengine)`.

    Args:
        gpu: The GPU; None where it cannot be read.

    Returns:
        Up to four of them; empty where none is found.
    """
    if gpu is None:
        return ""
    pids = [process.pid for process in gpu.processes or ()]
    files = {f"/dev/nvidia{gpu.minor_number}", *_list_capability_files(gpu.minor_number)}
    pids += [pid for pid in list_openers(files) if pid not in pids]
    told = []
    for pid in pids[:_MOST_NAMED]:
        process = read_process(pid)
        name = "gone" if process is None else escape_controls(process.name)
        told.append(f"process {pid} ({name})")
    if len(pids) > _MOST_NAMED:
        told.append(f"{len(pids) - _MOST_NAMED} more")
    return ", ".join(told)


def _list_capability_files(minor_number: int | None) -> tuple[str, ...]:
    with contextlib.suppress(OSError), open(_CAP_MINORS, encoding="ascii") as file:
        return find_capability_files(file.read(), minor_number)
    return ()


def find_capability_files(text: str, minor_number: int | None) -> tuple[str, ...]:
    """The files that give access to a GPU's instances; pure.

    Args:
        text: The driver's table, lines such as `gpu0/gi1/ci0/access 4`.
        minor_number: N of /dev/nvidiaN.
    """
    rows = (line.split() for line in text.splitlines())
    return tuple(
        f"{_CAPS}{row[1]}"
        for row in rows
        if len(row) == 2 and row[0].startswith(f"gpu{minor_number}/")
    )


def list_openers(files: Collection[str]) -> list[int]:
    """Processes that have one of these files open, without this one.

    Args:
        files: Such as /dev/nvidia0.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        # A process may end, or be another's in a namespace.
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{number}")
                    if target in files:
                        found.append(int(name))
                        break
    return sorted(found)
