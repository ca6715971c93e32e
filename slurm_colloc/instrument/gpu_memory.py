"""What PyTorch's allocator has reserved on the GPUs of this process; never starts CUDA.

NVML sees what a process holds at the moment of a look, and cudnn.benchmark holds several times as
much for some milliseconds of the first step. The allocator keeps its peak itself.
"""

from __future__ import annotations

import sys
from typing import Any


class AllocatorReader:
    """Asks the allocator of a torch that the program has imported.

    A look takes some 20 microseconds for each GPU that the program sees: it reads numbers that
    the allocator keeps, and neither calls the driver nor waits for a GPU.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        # GPUs that a process sees are settled once CUDA is up.
        self._count = 0

    def read(self) -> tuple[int, int] | None:
        """The peak of the bytes reserved, and those of now, each added up over the GPUs.

        Returns:
            None where CUDA is not in use, or nothing can be told.
        """
        cuda = sys.modules.get("torch.cuda")
        if cuda is None:
            return None
        try:
            return self._read(cuda)
        except Exception:
            # Of a half imported or a foreign torch, or an allocator that keeps no such numbers.
            return None

    def _read(self, cuda: Any) -> tuple[int, int] | None:
        if not cuda.is_initialized():
            return None
        count = self._count
        if not count:
            count = self._count = int(cuda.device_count())
        # max_memory_reserved makes a flat and sorted table of all statistics first: 140 us on the
        # host of an H100, this 22 us.
        nested = getattr(cuda, "memory_stats_as_nested_dict", None)
        peak = now = 0
        for device in range(count):
            if nested is None:
                peak += int(cuda.max_memory_reserved(device))
                now += int(cuda.memory_reserved(device))
                continue
            reserved = nested(device).get("reserved_bytes")
            if reserved is not None:
                peak += int(reserved["all"]["peak"])
                now += int(reserved["all"]["current"])
        return (peak, now) if peak > 0 else None
