"""One of the three ResNets that an H200 is measured with; writes down how many images it has seen.

As a user's script: timm's networks, or where timm is missing those of csub calibrate, as is `hog`,
which fills the GPU. Images are made on the GPU, in batches; of `hog`, steps are counted. A line of
the progress file is the monotonic clock in seconds, which all processes of a machine share, and the
images so far. With --fused 12 a batch is twelve times as large: the most that twelve such trainings
could reach together.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

# Model of timm, size of the images, batch.
SIZES = {
    "small": ("resnet26", 32, 128),
    "medium": ("resnet50", 64, 128),
    "large": ("resnet152", 224, 32),
}
WARM_UP_STEPS = 15
STEPS_PER_LOOK = 4
LINE_EVERY_S = 0.5


def build_step(size: str, device: str, fused: int = 1) -> tuple[Callable[[], None], str, int]:
    """One step of a training, where its network comes from, and the images of a step."""
    if size not in SIZES:
        return _build_calibrations(size, device), "csub calibrate", 1
    model, pixels, batch = SIZES[size]
    batch *= fused
    try:
        import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return _build_calibrations(size, device), "csub calibrate", batch
    torch.backends.cudnn.benchmark = True
    classes = 10 if size == "small" else 1000
    network = timm.create_model(model, num_classes=classes).to(device)
    network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    loss_function = torch.nn.CrossEntropyLoss()
    batches = [
        (
            torch.randn(batch, 3, pixels, pixels, device=device).to(
                memory_format=torch.channels_last
            ),
            torch.randint(0, 10, (batch,), device=device),
        )
        for _ in range(4)
    ]
    turn = 0

    def step() -> None:
        nonlocal turn
        images, labels = batches[turn % 4]
        turn += 1
        loss = loss_function(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step, f"timm {timm.__version__} {model}", batch


def _build_calibrations(name: str, device: str) -> Callable[[], None]:
    from slurm_colloc_lab.calibration.workloads import BY_NAME

    return BY_NAME[name].build(device, "full" if device == "cuda" else "tiny").step


def main() -> None:
    """Train on so many images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES, "hog"], required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--fused", type=int, default=1, help="times the batch")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    on_gpu = arguments.device == "cuda"
    step, origin, batch = build_step(arguments.size, arguments.device, arguments.fused)

    def synchronize() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(WARM_UP_STEPS):
        step()
    synchronize()
    images = 0
    begin = now = next_line = time.monotonic()
    with arguments.progress.open("w", buffering=1) as progress:
        while True:
            over = images >= arguments.images
            if over or now >= next_line:
                progress.write(f"{now:.6f} {images}\n")
                next_line = now + LINE_EVERY_S
            if over:
                break
            for _ in range(STEPS_PER_LOOK):
                step()
                images += batch
            # Only work that the GPU has finished counts.
            synchronize()
            now = time.monotonic()
    print(
        json.dumps(
            {
                "size": arguments.size,
                "batch": batch,
                "model": origin,
                "images": images,
                "to_first_step_s": round(begin - started, 3),
                "training_s": round(now - begin, 3),
                "cpus": sorted(os.sched_getaffinity(0)),
                "gpu": str(torch.cuda.get_device_properties(0).uuid) if on_gpu else None,
                "gpu_memory_peak_mb": torch.cuda.max_memory_allocated() >> 20 if on_gpu else None,
                "thread_percentage": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
            }
        )
    )


if __name__ == "__main__":
    main()
