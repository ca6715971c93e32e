"""Trains with torch.compile in several ways; prints its steps, and what the compiler did."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import _dynamo as dynamo
from torch.optim.optimizer import Optimizer


class Graphable(Optimizer):  # type: ignore[misc]
    """An optimizer without the graph break that torch's own have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:  # type: ignore[override, unused-ignore]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def run(what: str) -> int:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(8, 4)
    optimizer: Any
    if what == "graph":
        optimizer = Graphable(model.parameters())
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))

    def step() -> Any:
        optimizer.step()
        return x * 2

    def whole() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    steps = 6
    if what == "model":
        model = torch.compile(model, backend="eager")
        for _ in range(steps):
            whole()
    elif what == "whole":
        compiled = torch.compile(whole, backend="eager")
        for _ in range(steps):
            compiled()
    else:
        compiled = torch.compile(step, backend="eager", fullgraph=what == "graph")
        for _ in range(steps):
            model(x).square().mean().backward()
            compiled()
    return steps


def main() -> None:
    torch.set_num_threads(1)
    what = sys.argv[1]
    steps = run(what)
    counters = dynamo.utils.counters
    breaks = {reason.partition("\n")[0]: n for reason, n in counters["graph_break"].items()}
    print(json.dumps({"steps": steps, "breaks": breaks, "stats": dict(counters["stats"])}))


if __name__ == "__main__":
    main()
