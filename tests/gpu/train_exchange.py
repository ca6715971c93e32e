"""Trains a plain network by DDP, and counts itself what the exchange between its processes takes.

Started by torchrun: train_exchange.py OUT [--steps N] [--layers N] [--count]. With --count, the
first process writes JSON to OUT: seconds of a step with one batch that stays on the GPU, without
and with exchange, and of one with batches of its loader. Else it trains until it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ROUNDS = 6
WIDTH, BATCH = 2048, 64


class Rows(Dataset):
    """Rows of numbers that take next to no time to load."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), index % 7 / 7)


def load(device: torch.device) -> Iterator[torch.Tensor]:
    for batch in DataLoader(Rows(), batch_size=BATCH):
        yield batch.to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(options.layers)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    batches = load(device)
    if not options.count:
        for batch in batches:
            step(batch)
    resident = next(batches)
    times: dict[str, list[float]] = {"apart": [], "resident": [], "ordinary": []}
    for number in range(ROUNDS):
        for kind, found in times.items():
            dist.barrier()
            with model.no_sync() if kind == "apart" else contextlib.nullcontext():
                step(resident)
                begun = time.monotonic()
                for _ in range(options.steps):
                    step(next(batches) if kind == "ordinary" else resident)
                taken_s = time.monotonic() - begun
            # In the first the libraries still set themselves up.
            if number:
                found.append(taken_s / options.steps)
    if not rank:
        middle = {kind: statistics.median(found) for kind, found in times.items()}
        options.out.write_text(json.dumps(middle))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
