"""Trains a small ResNet and writes down, twice a second, how many images it has seen.

The model is ResNet-26 of timm, for 32x32 images in batches of 128. Images are made on the GPU, or
read from files by a DataLoader with worker processes (--files). A line of the progress file is the
monotonic clock in seconds, which all processes of a machine share, and the images so far.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from image_files import ImageFiles  # type: ignore[import-not-found]
from torch import nn

WARM_UP_STEPS = 15
STEPS_PER_LOOK = 4
LINE_EVERY_S = 0.5


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut (He et al., 2015)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the body to the shortcut."""
        return torch.relu(self.shortcut(inputs) + self.body(inputs))


def build_resnet26(classes: int) -> nn.Module:
    """The layers of timm's resnet26: two bottlenecks in each of four stages."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Bottleneck(inputs, width, stride), Bottleneck(4 * width, width, 1)]
        inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def make_model(classes: int) -> tuple[nn.Module, str]:
    """The model, and where it comes from."""
    try:
        import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return build_resnet26(classes), "own definition of resnet26"
    return timm.create_model("resnet26", num_classes=classes), f"timm {timm.__version__} resnet26"


def make_batches(
    arguments: argparse.Namespace,
) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
    """Batches without end, on the device."""
    device, batch = arguments.device, arguments.batch
    if arguments.files is None:
        made = [
            (
                torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last),
                torch.randint(0, 10, (batch,), device=device),
            )
            for _ in range(4)
        ]
        while True:
            yield from made
    loader: Any = torch.utils.data.DataLoader(
        ImageFiles(arguments.files),
        batch_size=batch,
        shuffle=True,
        num_workers=arguments.workers,
        drop_last=True,
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    while True:
        for images, labels in loader:
            on_device = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            yield on_device, labels.to(device, non_blocking=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--images", type=int, help="train on so many images")
    length.add_argument("--seconds", type=float, help="train for so long after the warm-up")
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--files", type=Path, help="a directory that image_files.py has filled")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, help="use so many of the cores that are allowed")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    """Train until enough images or seconds have gone by."""
    arguments = parse_arguments()
    started = time.monotonic()
    if arguments.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])

    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    batches = make_batches(arguments)
    if arguments.files is not None:
        # Workers are forked here, before this process has used the GPU.
        next(batches)
    model, origin = make_model(10)
    model = model.to(arguments.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        images, labels = next(batches)
        loss = loss_function(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def synchronize() -> None:
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM_UP_STEPS):
        loss = step()
    synchronize()
    images = 0
    begin = now = time.monotonic()
    next_line = begin
    with arguments.progress.open("w", buffering=1) as progress:
        while True:
            over = (
                now >= begin + arguments.seconds
                if arguments.images is None
                else images >= arguments.images
            )
            if over or now >= next_line:
                progress.write(f"{now:.6f} {images}\n")
                next_line = now + LINE_EVERY_S
            if over:
                break
            for _ in range(STEPS_PER_LOOK):
                loss = step()
                images += arguments.batch
            # Only work that the GPU has finished counts.
            synchronize()
            now = time.monotonic()
    # Ends the DataLoader's workers.
    batches.close()
    print(
        json.dumps(
            {
                "member": os.environ.get("SLURM_COLLOC_MEMBER"),
                "model": origin,
                "torch": torch.__version__,
                "images": images,
                "to_first_step_s": round(begin - started, 3),
                "training_s": round(now - begin, 3),
                "cpus": sorted(os.sched_getaffinity(0)),
                "gpu_memory_peak_mb": torch.cuda.max_memory_allocated() >> 20
                if arguments.device == "cuda"
                else None,
                "loss_is_finite": bool(torch.isfinite(loss)),
                "thread_percentage": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
                "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count
                if arguments.device == "cuda"
                else None,
            }
        )
    )


if __name__ == "__main__":
    main()
