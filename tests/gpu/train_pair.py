"""Trains a small transformer by DDP, one process a GPU, and tells how long NCCL took of it.

Started by torchrun. The first process writes, twice a second, the monotonic clock in seconds and
the steps so far; at its end it prints what was measured. NCCL's time is from the moment when
gradients are ready until they are summed: so the wait for the slower GPU is in it.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 10
LINE_EVERY_S = 0.5


@dataclass
class CommunicationTimes:
    """When gradients were on their way, of each step."""

    on_gpu: bool
    open: list[tuple[Any, Any]] = field(default_factory=list)
    spans_s: list[float] = field(default_factory=list)

    def mark(self) -> Any:
        """A moment on the GPU's current stream; on the CPU one of the clock."""
        if not self.on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end_step(self, begin: Any) -> None:
        """Add what this step has needed: buckets may be on their way at the same time.

        Args:
            begin: A mark from before the step.
        """
        covered_s, last_s = 0.0, 0.0
        spans = [(self._since(begin, one), self._since(begin, other)) for one, other in self.open]
        for start_s, end_s in sorted(spans):
            covered_s += max(0.0, end_s - max(start_s, last_s))
            last_s = max(last_s, end_s)
        self.spans_s.append(covered_s)
        self.open.clear()

    def _since(self, begin: Any, moment: Any) -> float:
        if not self.on_gpu:
            return float(moment - begin)
        return float(begin.elapsed_time(moment)) / 1000


# DDP looks at its annotations, so they are no texts here.
def sum_gradients(
    times: CommunicationTimes, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP's own all-reduce, with its begin and end written down."""
    tensor = bucket.buffer()
    begin = times.mark()
    tensor.div_(dist.get_world_size())
    future = dist.all_reduce(tensor, async_op=True).get_future()

    def note_end(done: torch.futures.Future[Any]) -> torch.Tensor:
        times.open.append((begin, times.mark()))
        summed: torch.Tensor = done.value()[0]
        return summed

    return future.then(note_end)


def build_model(width: int, layers: int) -> nn.Module:
    """A transformer encoder; with 512 and 8 it has 25 million weights, 100 MB of gradients."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    on_gpu = arguments.device == "cuda"
    rank = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    model = build_model(arguments.width, arguments.layers).to(device)
    times = CommunicationTimes(on_gpu)
    parallel = DistributedDataParallel(model, device_ids=[rank] if on_gpu else None)
    parallel.register_comm_hook(times, sum_gradients)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-4)
    words = torch.randn(arguments.batch, 128, arguments.width, device=device)

    def step() -> None:
        begin = times.mark()
        with torch.autocast(arguments.device, dtype=torch.bfloat16):
            loss = parallel(words).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        times.end_step(begin)

    for _ in range(WARM_UP_STEPS):
        step()
    times.spans_s.clear()
    begin = now = next_line = time.monotonic()
    with arguments.progress.open("w", buffering=1) as progress:
        for done in range(arguments.steps + 1):
            if rank == 0 and (now >= next_line or done == arguments.steps):
                progress.write(f"{now:.6f} {done}\n")
                next_line = now + LINE_EVERY_S
            if done < arguments.steps:
                step()
                now = time.monotonic()
    if rank == 0:
        print(
            json.dumps(
                {
                    "steps": arguments.steps,
                    "training_s": round(now - begin, 3),
                    "to_first_step_s": round(begin - started, 3),
                    "communication_s": round(sum(times.spans_s), 4),
                    "communication_share": round(sum(times.spans_s) / (now - begin), 4),
                    "processes": dist.get_world_size(),
                    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
                    "port": os.environ.get("MASTER_PORT"),
                    "torch": torch.__version__,
                }
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
