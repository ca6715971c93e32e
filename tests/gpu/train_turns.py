"""A deterministic training with so much GPU memory; prints every loss with all its digits.

The memory is used in every step: a block of it goes into the next input, so that a byte that comes
back wrong is seen in the losses.
"""

from __future__ import annotations

import argparse
import time

import torch


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-s", type=float, default=0.1, help="the least length of a step")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(mode=True)
    width = 1024
    blocks = int(arguments.gb * 2**30 / (4 * width * width))
    memory = torch.randn(blocks, width, width, device="cuda")
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(arguments.steps):
        began = time.monotonic()
        inputs = memory[(step * 7919) % blocks]
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        memory[(step * 7919) % blocks].mul_(0.5)
        print(f"loss {step} {loss.item().hex()}", flush=True)
        time.sleep(max(0.0, arguments.step_s - (time.monotonic() - began)))
    total = torch.stack([block.double().sum() for block in memory]).sum()
    print(f"sum {total.item().hex()}", flush=True)


if __name__ == "__main__":
    main()
