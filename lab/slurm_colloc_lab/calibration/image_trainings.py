"""The trainings on images; loaded only where a training runs, because it loads torch."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from slurm_colloc_lab.calibration.workloads import TINY, Training

_IDLE_S = 0.012
# Below eight channels, oneDNN's AVX2 kernel for the weights of a 1x1 convolution with a stride
# writes past its buffer (https://github.com/uxlfoundation/oneDNN/issues/6035).
_TINY_WIDTH = 8


class Residual(nn.Module):  # type: ignore[misc]
    """A body with a shortcut (He et al., 2015): two convolutions, or a bottleneck of three."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers: list[Any] = []
        for one, other, size, pace in shapes:
            layers += [
                nn.Conv2d(one, other, size, stride=pace, padding=size // 2, bias=False),
                nn.BatchNorm2d(other),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: Any) -> Any:
        """Add the body to the shortcut."""
        return torch.relu(self.shortcut(inputs) + self.body(inputs))


def make_resnet(blocks: tuple[int, ...], width: int, *, bottleneck: bool) -> Any:
    """A ResNet for ten classes.

    Args:
        blocks: How many blocks each stage has; each stage is twice as wide as the one before.
        width: The width of the first stage.
        bottleneck: Blocks have three convolutions instead of two.
    """
    layers: list[Any] = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = width
    for stage, count in enumerate(blocks):
        wide = width << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Residual(inputs, wide, stride, bottleneck=bottleneck))
            inputs = 4 * wide if bottleneck else wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def make_plain(widths: tuple[int, ...]) -> Any:
    """Pairs of convolutions, each pair at half the size of the one before."""
    layers: list[Any] = []
    inputs = 3
    for width in widths:
        for _ in range(2):
            layers += [
                nn.Conv2d(inputs, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class Trainer:
    """A network on its device, and one step of SGD with momentum."""

    def __init__(self, network: Any, device: str) -> None:
        self.network = network.to(device).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()

    def train(self, images: Any, labels: Any) -> None:
        """Learn from one batch."""
        loss = self._loss(self.network(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


def _make_images(count: int, size: int, device: str) -> tuple[Any, Any]:
    images = torch.randn(count, 3, size, size, device=device)
    return images.to(memory_format=torch.channels_last), torch.randint(
        0, 10, (count,), device=device
    )


def _train_on_device(network: Any, batch: int, size: int, device: str) -> Training:
    trainer = Trainer(network, device)
    batches = [_make_images(batch, size, device) for _ in range(2)]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn ^= 1
        trainer.train(*batches[turn])

    return Training(step, _close_nothing)


def _close_nothing() -> None:
    """There is nothing to end."""


def build_cnn32(device: str, scale: str) -> Training:
    """A plain convolutional network on 32x32 images."""
    if scale == TINY:
        return _train_on_device(make_plain((4, 8)), 4, 16, device)
    return _train_on_device(make_plain((64, 128, 256)), 256, 32, device)


def build_resnet18(device: str, scale: str) -> Training:
    """ResNet-18 on 64x64 images: more launches than work."""
    if scale == TINY:
        return _train_on_device(make_resnet((1, 1), _TINY_WIDTH, bottleneck=False), 2, 32, device)
    return _train_on_device(make_resnet((2, 2, 2, 2), 64, bottleneck=False), 128, 64, device)


def build_resnet50(device: str, scale: str) -> Training:
    """ResNet-50 on 224x224 images: fills the GPU."""
    if scale == TINY:
        return _train_on_device(make_resnet((1, 1), _TINY_WIDTH, bottleneck=True), 2, 48, device)
    return _train_on_device(make_resnet((3, 4, 6, 3), 64, bottleneck=True), 48, 224, device)


def _build_tuned(
    device: str, scale: str, blocks: tuple[int, ...], batch: int, size: int
) -> Training:
    torch.backends.cudnn.benchmark = True
    if scale == TINY:
        blocks, batch, size = tuple(1 for _ in blocks[:2]), 2, 32
    width = _TINY_WIDTH if scale == TINY else 64
    return _train_on_device(make_resnet(blocks, width, bottleneck=True), batch, size, device)


def build_small(device: str, scale: str) -> Training:
    """ResNet-26 on 32x32 images in batches of 128."""
    return _build_tuned(device, scale, (2, 2, 2, 2), 128, 32)


def build_medium(device: str, scale: str) -> Training:
    """ResNet-50 on 64x64 images in batches of 128."""
    return _build_tuned(device, scale, (3, 4, 6, 3), 128, 64)


def build_large(device: str, scale: str) -> Training:
    """ResNet-152 on 224x224 images in batches of 32."""
    return _build_tuned(device, scale, (3, 8, 36, 3), 32, 224)


def build_feed(device: str, scale: str) -> Training:
    """A small network whose large images come from pinned host_memory in every step (PCIe)."""
    batch, size = (4, 32) if scale == TINY else (224, 224)
    on_gpu = device != "cpu"
    network = nn.Sequential(
        nn.Conv2d(3, 32, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    trainer = Trainer(network, device)
    sources = [torch.zeros(batch, 3, size, size, pin_memory=on_gpu) for _ in range(2)]
    labels = torch.randint(0, 10, (batch,), device=device)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn ^= 1
        trainer.train(sources[turn].to(device, non_blocking=True), labels)

    return Training(step, _close_nothing)


def build_bursty(device: str, scale: str) -> Training:
    """Training, evaluation, a checkpoint into host_memory and a pause; one step is the whole.

    With the whole cycle as one step, a window that ends within a cycle still tells a rate.
    """
    widths, batch, size, times = (
        ((4, 8), 4, 16, 1) if scale == TINY else ((64, 128, 256), 256, 32, 8)
    )
    trainer = Trainer(make_plain(widths), device)
    images, labels = _make_images(batch, size, device)

    def evaluate() -> None:
        with torch.no_grad():
            trainer.network(images)

    def save() -> None:
        torch.save(trainer.network.state_dict(), io.BytesIO())
        time.sleep(0.001 if scale == TINY else _IDLE_S)

    def step() -> None:
        _repeat(times, lambda: trainer.train(images, labels))
        _repeat(times, evaluate)
        save()

    return Training(step, _close_nothing)


def _repeat(times: int, act: Callable[[], None]) -> None:
    for _ in range(times):
        act()
