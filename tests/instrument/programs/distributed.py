"""Trains with DistributedDataParallel on the CPU; each rank prints its steps and samples."""

from __future__ import annotations

import gc
import json
import os
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = torch.utils.data.TensorDataset(torch.randn(26, 4), torch.randn(26, 1))
    sampler: Any = torch.utils.data.DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = samples = 0
    for x, y in torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        steps += 1
        samples += len(x)
    said = {"pid": os.getpid(), "rank": rank, "steps": steps, "samples": samples}
    print("\n" + json.dumps(said), flush=True)
    # What still holds the process group at the interpreter's end may abort there.
    del model, optimizer
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
