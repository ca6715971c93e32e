"""The trainings on anything but images; loaded only where one runs, because it loads torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slurm_colloc_lab.calibration.workloads import TINY, Training

_GIB = 1 << 30


def _close_nothing() -> None:
    """There is nothing to end."""


def build_mlp(device: str, scale: str) -> Training:
    """A network so small that only launching its kernels takes time; a step is eight batches."""
    width, batch, times = (16, 8, 1) if scale == TINY else (256, 128, 8)
    layers: list[Any] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    inputs = torch.randn(batch, width, device=device)

    def step() -> None:
        for _ in range(times):
            optimizer.zero_grad(set_to_none=True)
            network(inputs).square().mean().backward()
            optimizer.step()

    return Training(step, _close_nothing)


class _Block(nn.Module):  # type: ignore[misc]
    """One layer of a GPT: causal attention and a wide MLP, each with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.before = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, inputs: Any) -> Any:
        """Attend to what came before, then transform each place by itself."""
        batch, length, width = inputs.shape
        parts = self.query_key_value(self.before(inputs)).chunk(3, dim=-1)
        shape = (batch, length, self._heads, width // self._heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return inputs + self.mlp(inputs)


def _build_gpt(
    device: str,
    *,
    layers: int,
    width: int,
    heads: int,
    words: int,
    batch: int,
    length: int,
    half: bool,
) -> Training:
    network = nn.Sequential(
        nn.Embedding(words, width),
        *(_Block(width, heads) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, words, bias=False),
    ).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    tokens = torch.randint(0, words, (batch, length), device=device)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            logits = network(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return Training(step, _close_nothing)


def build_gpt10m(device: str, scale: str) -> Training:
    """A GPT of 10 million weights in single precision."""
    if scale == TINY:
        return _build_gpt(
            device, layers=1, width=16, heads=2, words=32, batch=2, length=16, half=False
        )
    return _build_gpt(
        device, layers=6, width=384, heads=6, words=512, batch=12, length=256, half=False
    )


def build_gpt125m(device: str, scale: str) -> Training:
    """A GPT of 125 million weights in bfloat16 (tensor cores)."""
    if scale == TINY:
        return _build_gpt(
            device, layers=2, width=16, heads=2, words=64, batch=2, length=16, half=True
        )
    return _build_gpt(
        device, layers=12, width=768, heads=12, words=50304, batch=8, length=512, half=True
    )


def build_recsys(device: str, scale: str) -> Training:
    """Sums of many rows of a large table, and sparse updates of them (DRAM)."""
    rows, width, batch, bag = (1000, 8, 16, 4) if scale == TINY else (16_000_000, 64, 65_536, 64)
    table = nn.EmbeddingBag(rows, width, mode="sum", sparse=True, device=device)
    top = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.SGD([*table.parameters(), *top.parameters()], lr=1e-4)
    asked = [torch.randint(0, rows, (batch, bag), device=device) for _ in range(2)]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn ^= 1
        optimizer.zero_grad(set_to_none=True)
        top(table(asked[turn])).square().mean().backward()
        optimizer.step()

    return Training(step, _close_nothing)


def build_gnn(device: str, scale: str) -> Training:
    """Two rounds of gathering from neighbours and scattering to them (L2 cache and DRAM)."""
    nodes, edges, width = (100, 500, 8) if scale == TINY else (100_000, 1_500_000, 64)
    first = nn.Linear(width, width).to(device)
    second = nn.Linear(width, width).to(device)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-4)
    features = torch.randn(nodes, width, device=device)
    source = torch.randint(0, nodes, (edges,), device=device)
    target = torch.randint(0, nodes, (edges,), device=device)

    def spread(values: Any) -> Any:
        return torch.zeros_like(values).index_add(0, target, values.index_select(0, source))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        hidden = torch.relu(spread(first(features)))
        spread(second(hidden)).square().mean().backward()
        optimizer.step()

    return Training(step, _close_nothing)


def build_lstm(device: str, scale: str) -> Training:
    """Two layers of LSTM: many small steps, each waiting for the one before (latency)."""
    width, length, batch = (8, 8, 4) if scale == TINY else (512, 96, 64)
    network = nn.LSTM(width, width, num_layers=2).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    inputs = torch.randn(length, batch, width, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        network(inputs)[0].square().mean().backward()
        optimizer.step()

    return Training(step, _close_nothing)


def build_rl(device: str, scale: str) -> Training:
    """Sixteen turns of asking a policy and playing on the host, then one update (many waits)."""
    width, batch, turns = (8, 4, 2) if scale == TINY else (128, 64, 16)
    policy = nn.Sequential(nn.Linear(width, 256), nn.Tanh(), nn.Linear(256, width)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    mixing = torch.randn(width, width) / width**0.5

    def step() -> None:
        state = torch.zeros(batch, width)
        seen = []
        for _ in range(turns):
            on_device = state.to(device)
            seen.append(on_device)
            with torch.no_grad():
                action = policy(on_device).cpu()
            state = torch.tanh(state @ mixing + action)
        optimizer.zero_grad(set_to_none=True)
        policy(torch.cat(seen)).square().mean().backward()
        optimizer.step()

    return Training(step, _close_nothing)


def build_hog(device: str, scale: str) -> Training:
    """Holds 30 GB of gpu_memory, changes a part of it in each step, and multiplies matrices."""
    parts, size = (4, 64) if scale == TINY else (28, 4096)
    part_bytes = 4096 if scale == TINY else _GIB
    held = [torch.zeros(part_bytes // 4, device=device) for _ in range(parts)]
    matrix = torch.randn(size, size, device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % parts
        held[turn].mul_(0.5).add_(1.0)
        torch.mm(matrix, matrix)

    return Training(step, _close_nothing)
