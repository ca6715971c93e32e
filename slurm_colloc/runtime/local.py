"""A place on this machine for a pack that runs without Slurm."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from slurm_colloc.runtime.allocation import Allocation, read_allocation
from slurm_colloc.store.files import make_directory

_GPUS = Path("/proc/driver/nvidia/gpus")
POLL_S = 0.2


def list_gpu_uuids() -> list[str]:
    """UUIDs of this machine's NVIDIA GPUs, from the driver's own files; empty without one."""
    uuids = []
    try:
        for information in sorted(_GPUS.glob("*/information")):
            for line in information.read_text().splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "GPU UUID":
                    uuids.append(value.strip())
    except OSError:
        return []
    return uuids


def wait_for_local_gpu(directory: Path, local_id: str) -> Allocation:
    """Wait until a GPU of this machine (or the machine, if it has none) is free for a pack.

    Args:
        directory: Where the locks lie; one lock each, held until this process ends.
        local_id: The pack's id.
    """
    make_directory(directory)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [word for word in visible.split(",") if word] if visible is not None else []
    gpus = gpus or list_gpu_uuids()
    slots = gpus or ["machine"]
    while True:
        for slot in slots:
            name = "".join(c if c.isalnum() or c == "-" else "_" for c in slot)
            lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            if gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = slot
            return read_allocation(os.environ, local_id)
        time.sleep(POLL_S)
