"""Trains on batches of a DataLoader that sleeps for each, and measures the wait itself.

Half a second apart it writes the monotonic clock in seconds, for how long it has waited for the
loader so far, for how long the loader has slept (known here only where it works in this process,
else 0), and the batches so far. Only work that the GPU has finished lies before a line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from train_small import make_model  # type: ignore[import-not-found]

LINE_EVERY_S = 0.5
STEPS_PER_LOOK = 4
MOST = 1 << 30


class SleepyBatches(torch.utils.data.Dataset):  # type: ignore[type-arg,misc,unused-ignore]
    """Batches that take a while.

    Args:
        delay_s: How long each sleeps.
        batch: Images in each.
    """

    def __init__(self, delay_s: float, batch: int) -> None:
        self._delay_s = delay_s
        self._images = torch.randn(batch, 3, 32, 32)
        self._labels = torch.randint(0, 10, (batch,))
        self.slept_s = 0.0

    def __len__(self) -> int:
        return MOST

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = time.monotonic()
        time.sleep(self._delay_s)
        self.slept_s += time.monotonic() - begin
        return self._images, self._labels


def main() -> None:
    """Train for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    dataset = SleepyBatches(arguments.delay_ms / 1000, arguments.batch)
    # Batches in order: a shuffled order would be a list of all of them.
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=arguments.workers
    )
    batches = iter(loader)
    # Workers are forked here, before this process has used the GPU.
    first = next(batches)
    model, _ = make_model(10)
    model = model.to(arguments.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        on_device = images.to(arguments.device, memory_format=torch.channels_last)
        loss = loss_function(model(on_device), labels.to(arguments.device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    step(*first)
    waited_s, count = 0.0, 0
    begin = now = time.monotonic()
    next_line = begin
    with arguments.progress.open("w", buffering=1) as progress:
        while now < begin + arguments.seconds:
            for _ in range(STEPS_PER_LOOK):
                asked = time.monotonic()
                images, labels = next(batches)
                waited_s += time.monotonic() - asked
                step(images, labels)
                count += 1
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            now = time.monotonic()
            if now >= next_line:
                slept_s = dataset.slept_s if arguments.workers == 0 else 0.0
                progress.write(f"{now:.6f} {waited_s:.6f} {slept_s:.6f} {count}\n")
                next_line = now + LINE_EVERY_S
    print(
        json.dumps(
            {
                "member": os.environ.get("SLURM_COLLOC_MEMBER"),
                "batches": count,
                "waited_share": round(waited_s / (now - begin), 4),
                "step_ms": round(1000 * (now - begin - waited_s) / count, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
