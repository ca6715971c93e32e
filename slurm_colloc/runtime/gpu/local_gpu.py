"""The GPU of a pack without Slurm: one lock for each GPU of the machine, however it is named."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.store.atomic_files import make_directory

_GPUS = Path("/proc/driver/nvidia/gpus")
_MACHINE = "machine"
POLL_S = 0.2


def list_gpu_uuids() -> list[str]:
    """UUIDs of this machine's NVIDIA GPUs, from the driver's own files; empty without one.

    They come by their PCI addresses, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
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


def choose_gpus(visible: str | None, uuids: Sequence[str]) -> list[str]:
    """The GPUs that a user lets a pack use, by UUID as far as they are known.

    Args:
        visible: CUDA_VISIBLE_DEVICES: indexes or UUIDs, which may be shortened; None where it is
            not set. As for CUDA, an empty text means none, and what follows a word that names no
            GPU does not count.
        uuids: The machine's GPUs; empty where they cannot be read.

    Returns:
        Each once; a word as it is where no UUID is known for it.
    """
    if visible is None:
        return list(uuids)
    chosen: list[str] = []
    for word in map(str.strip, visible.split(",")):
        found = [word] if word and not uuids else _find(word, uuids)
        if len(found) != 1 or word.startswith("-"):
            break
        chosen += found
    return list(dict.fromkeys(chosen))


def _find(word: str, uuids: Sequence[str]) -> list[str]:
    if word.isdecimal():
        return list(uuids[int(word) : int(word) + 1])
    # An instance of a GPU (MIG) has a UUID of its own.
    if word.startswith("MIG-"):
        return [word]
    return [uuid for uuid in uuids if word and uuid.startswith(word)]


def wait_for_gpu(directory: Path) -> str:
    """Wait until a GPU of this machine (or the machine, if it has none) is free for a pack.

    What CUDA_VISIBLE_DEVICES is to be in this process is set there.

    Args:
        directory: Where the locks lie; one lock each, held until this process ends.

    Returns:
        The GPU, or `machine`.
    """
    make_directory(directory)
    gpus = choose_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), list_gpu_uuids())
    while True:
        for slot in gpus or [_MACHINE]:
            name = "".join(c if c.isalnum() or c == "-" else "_" for c in slot)
            lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            if gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = slot
            return slot
        time.sleep(POLL_S)
