"""A small real training: a two-layer network learns a made-up classification task on the CPU."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time

import torch


def main() -> int:
    """Train for some seconds; exit status 3 if the loss stops being a number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--seconds", type=float, default=float(os.environ.get("DEMO_SECONDS", "16"))
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    inputs = torch.randn(4096, 64)
    labels = (inputs @ torch.randn(64, 10)).argmax(dim=1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    loss_function = torch.nn.CrossEntropyLoss()
    member = os.environ.get("SLURM_COLLOC_MEMBER", "alone")
    print(f"{member}: lr {arguments.lr}, {torch.get_num_threads()} threads", flush=True)
    begin = shown = time.monotonic()
    step = 0
    while time.monotonic() - begin < arguments.seconds:
        batch = torch.randint(0, len(inputs), (256,))
        loss = loss_function(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if not math.isfinite(loss.item()):
            print(f"{member}: step {step}, the loss is {loss.item()}", flush=True)
            return 3
        if time.monotonic() - shown >= 2.0:
            shown = time.monotonic()
            print(f"{member}: step {step}, loss {loss.item():.4f}", flush=True)
    right = (model(inputs).argmax(dim=1) == labels).float().mean().item()
    print(f"{member}: {step} steps, accuracy {right:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
