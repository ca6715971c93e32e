"""A small ResNet training on made-up 32x32 images on the GPU; prints its rate in a common window.

The window begins at a wall-clock time that all trainings of a measurement share, so that rates of
neighbours are counted over the same seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the body to the input."""
        return torch.relu(inputs + self.body(inputs))


def main() -> None:
    """Train until the window is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--begin", type=float, required=True, help="seconds since the epoch")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *(Block(16) for _ in range(12)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).cuda()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    images = torch.randn(arguments.batch, 3, 32, 32, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (arguments.batch,), device="cuda")

    def step() -> torch.Tensor:
        loss = loss_function(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(20):
        step()
    torch.cuda.synchronize()
    ready = time.time()
    while time.time() < arguments.begin:
        step()
        torch.cuda.synchronize()
    steps = 0
    loss = step()
    begin = time.time()
    while time.time() < arguments.begin + arguments.seconds:
        for _ in range(4):
            loss = step()
            steps += 1
        torch.cuda.synchronize()
    took = time.time() - begin
    print(
        json.dumps(
            {
                "member": os.environ.get("SLURM_COLLOC_MEMBER"),
                "gpu_uuid": str(torch.cuda.get_device_properties(0).uuid),
                "ready_before_begin_s": arguments.begin - ready,
                "images_per_s": steps * arguments.batch / took,
                "cpus": sorted(os.sched_getaffinity(0)),
                "loss_is_finite": bool(torch.isfinite(loss)),
                "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            }
        )
    )


if __name__ == "__main__":
    main()
