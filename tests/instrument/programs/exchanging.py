"""Trains with two processes on the CPU while `csub probe --stalls` changes their batches.

Arguments: what the probe writes; `ddp`, whose exchange takes 20 ms, or `plain`. Every twenty steps
all agree whether that is final. Each rank prints its steps, and how often it exchanged.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    result, how = Path(sys.argv[1]), sys.argv[2]
    stalls: Any = import_module("_slurm_colloc_instrument.torch_stalls")
    stalls.WARM_S = stalls.PHASE_S = 0.2
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    sampler: Any = torch.utils.data.DistributedSampler(data)
    model: Any = torch.nn.Linear(4, 1)
    exchanges = 0

    def exchange(bucket: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        time.sleep(0.02)
        reduced = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda done: done.value()[0])

    if how == "ddp":
        model = DistributedDataParallel(model)
        # It refuses other annotations than its own.
        model.register_comm_hook(None, lambda _, bucket: exchange(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = 0
    is_final = torch.zeros(1)
    while not is_final:
        for x, y in torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler):
            # The other one is slower.
            time.sleep(0.002 * (1 + rank))
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps % 20 == 0:
                is_final += result.exists() and json.loads(result.read_text())["final"]
                torch.distributed.all_reduce(is_final)
                if is_final:
                    break
    print("\n" + json.dumps({"rank": rank, "steps": steps, "exchanges": exchanges}), flush=True)
    # What still holds the process group at the interpreter's end may abort there.
    del model, optimizer
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
