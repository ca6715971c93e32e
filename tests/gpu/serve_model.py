"""A model that answers requests as they come: RATE a second on average, whatever is waiting.

serve_model.py RATE OUT [--device cuda]

ResNet-50, one picture of 224 x 224, half precision. It writes a line `due latency` for each request
to OUT, in seconds, until it is ended. Latency counts from the moment when the request was due.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore")


def build(device: str) -> Callable[[], Any]:
    """Answer one request; on a device without a GPU it takes as long, without work."""
    if device == "cpu":
        return lambda: time.sleep(0.004)
    models: Any = importlib.import_module("torchvision.models")
    model = models.resnet50().to(device).half().eval().to(memory_format=torch.channels_last)
    picture = torch.randn(1, 3, 224, 224)

    def answer() -> Any:
        there = picture.to(device).half().to(memory_format=torch.channels_last)
        return model(there).argmax().item()

    return answer


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rate", type=float)
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(1)
    answer = build(given.device)
    with torch.inference_mode(), Path(given.out).open("w", buffering=1) as out:
        for _ in range(30):
            answer()
        due = time.time()
        while True:
            due += chance.expovariate(given.rate)
            time.sleep(max(0.0, due - time.time()))
            answer()
            out.write(f"{due:.6f} {time.time() - due:.6f}\n")


if __name__ == "__main__":
    main()
