"""One of the three ResNets that an H200 is measured with; writes down how many images it has seen.

As a user's script: timm's networks, or where timm is missing those of csub calibrate. Images are
made on the GPU, in batches. A line of the progress file is the monotonic clock in seconds, which
all processes of a machine share, and the images so far.
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


def build_step(size: str, device: str) -> tuple[Callable[[], None], str]:
    """One step of a training, and where its network comes from."""
    model, pixels, batch = SIZES[size]
    try:
        import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        from slurm_colloc.calibration.workloads import BY_NAME

        training = BY_NAME[size].build(device, "full" if device == "cuda" else "tiny")
        return training.step, "csub calibrate"
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

    return step, f"timm {timm.__version__} {model}"


def main() -> None:
    """Train on so many images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    on_gpu = arguments.device == "cuda"
    step, origin = build_step(arguments.size, arguments.device)

    def synchronize() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(WARM_UP_STEPS):
        step()
    synchronize()
    images, batch = 0, SIZES[arguments.size][2]
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
