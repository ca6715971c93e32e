"""A member whose first producer finds /dev/shm full: what does it see in two epochs?

python full_shm.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slurm_colloc.loading.shared_loader import shared
from tests.loading.loader_programs import in_company

FULL = Path("/dev/shm/full")
ROOM = 128 << 10
"""Enough for the locks of a loader, and not for a sample."""


def compute_free() -> int:
    found = os.statvfs("/dev/shm")
    return found.f_bavail * found.f_frsize


class Pictures(Dataset[Any]):
    """Fills /dev/shm, once, where it is called for the producer."""

    def __init__(self, own: int, once: str) -> None:
        self.own = own
        self.once = once

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        is_own = os.getppid() == self.own
        if is_own:
            FULL.unlink(missing_ok=True)
        elif index >= 4 and not Path(self.once).exists():
            Path(self.once).touch()
            with FULL.open("wb", buffering=0) as file:
                while compute_free() > ROOM:
                    file.write(bytes(4096))
        return torch.zeros(64 << 10), index, is_own


def main() -> None:
    pack = Path(sys.argv[1], "own_pack")
    pack.mkdir(mode=0o700)
    os.environ["SLURM_COLLOC_PROGRESS"] = str(pack / "0001.1")
    dataset = Pictures(os.getpid(), str(pack.parent / "filled"))
    collate = None if sys.argv[2] == "collated" else list
    loader = DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=collate)
    epochs = []
    with in_company(loader):
        used = shared(loader)
        for _ in range(2):
            ids: list[int] = []
            own = False
            for batch in used:
                if collate is None:
                    _, found, is_own = batch
                    ids += found.tolist()
                    own |= bool(is_own.any())
                else:
                    ids += [index for _, index, _ in batch]
                    own |= any(is_own for *_, is_own in batch)
            epochs.append({"ids": ids, "own": own})
    print(json.dumps(epochs))


main()
