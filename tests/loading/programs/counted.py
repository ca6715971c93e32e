"""Trains two epochs as a member that has company, and leaves counting to the instrument."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import slurm_colloc
from slurm_colloc.loading.members import MeetingPlace
from slurm_colloc.loading.same_loader import identify

pack = str(Path(os.environ["SLURM_COLLOC_PROGRESS"]).parent)
workers = int(sys.argv[1])
loader: Any = DataLoader(TensorDataset(torch.ones(50, 1)), batch_size=4, num_workers=workers)
company = MeetingPlace(pack, *identify(loader, None))
company.note_in_vain(company.name)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
used = slurm_colloc.shared(loader)
assert used is not loader
for _ in range(2):
    for (values,) in used:
        model(values).sum().backward()
        optimizer.step()
