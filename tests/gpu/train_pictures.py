"""Trains a residual network on JPEG pictures, which torchvision decodes and augments.

train_pictures.py make FOLDER COUNT [--scale N]
train_pictures.py train FOLDER OUT [--workers N] [--batch N] [--epochs N] [--shared] [--sleep S]
                  [--work N] [--repeat N] [--device D]

`make` writes pictures of coloured squares and noise, N times 500 pixels wide. `train` appends a
line of JSON to OUT at the end of each epoch: its number, when it ended, how many samples it had,
whether each came once, and the part of its time that it waited for data. --sleep is a pause for
each picture, --work how often a batch goes through the network, and --repeat how often each picture
is in an epoch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg, read_file
from torchvision.transforms import v2

HEIGHT, WIDTH = 375, 500
CLASSES = 10


def make_pictures(folder: Path, count: int, scale: int) -> None:
    """Write so many pictures; those of one number are the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(7)
    size = scale * HEIGHT, scale * WIDTH
    for number in range(count):
        noise = torch.randint(0, 64, (3, HEIGHT // 5, WIDTH // 5), generator=random)
        pixels = functional.interpolate(noise[None].float(), size, mode="bilinear")[0]
        low = 20 * (number % CLASSES)
        pixels[number % 3, low : low + 100, low : low + 100] += 128
        name = folder / f"{number % CLASSES}_{number:06}.jpg"
        name.write_bytes(bytes(encode_jpeg(pixels.to(torch.uint8), quality=90).numpy()))


class Pictures(Dataset):
    """The pictures of a folder: the sample, its label, its number."""

    def __init__(self, folder: Path, sleep_s: float, repeat: int) -> None:
        self._paths = repeat * sorted(str(path) for path in folder.glob("*.jpg"))
        self._sleep_s = sleep_s
        self._transform = v2.Compose(
            [
                v2.RandomResizedCrop(160, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.4, 0.4, 0.4),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        path = self._paths[index]
        pixels = decode_jpeg(read_file(path), ImageReadMode.RGB)
        if self._sleep_s:
            time.sleep(self._sleep_s)
        return self._transform(pixels), int(Path(path).name.partition("_")[0]), index


class Residual(torch.nn.Module):
    """Five blocks of two convolutions, each of half the resolution of the one before."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 32, 64, 128, 256, 256)
        self.first = torch.nn.ModuleList(
            torch.nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(sizes)
        )
        self.second = torch.nn.ModuleList(torch.nn.Conv2d(b, b, 3, padding=1) for b in sizes[1:])
        self.head = torch.nn.Linear(sizes[-1], CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            pictures = torch.relu(first(pictures))
            pictures = torch.relu(pictures + second(pictures))
        return self.head(pictures.mean((2, 3)))


def train(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    data = Pictures(options.folder, options.sleep, options.repeat)
    loader = DataLoader(
        data,
        options.batch,
        shuffle=True,
        num_workers=options.workers,
        # Starting them anew takes as long as a short epoch.
        persistent_workers=options.workers > 0,
    )
    if options.shared:
        import slurm_colloc

        loader = slurm_colloc.shared(loader)
    model = Residual().to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        seen: list[int] = []
        begun, waited_s = time.monotonic(), 0.0
        asked = begun
        for batch in loader:
            waited_s += time.monotonic() - asked
            seen += batch[2].tolist()
            pictures, labels = (each.to(options.device) for each in batch[:2])
            for _ in range(options.work):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(pictures), labels)
                loss.backward()
                optimizer.step()
            loss.item()
            asked = time.monotonic()
        line = {
            "epoch": epoch,
            "at": time.time(),
            "samples": len(seen),
            "seconds": time.monotonic() - begun,
            "exact": sorted(seen) == list(range(len(data))),
            "wait_share": waited_s / (time.monotonic() - begun),
        }
        with options.out.open("a") as out:
            out.write(f"{json.dumps(line)}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("make")
    make.add_argument("folder", type=Path)
    make.add_argument("count", type=int)
    make.add_argument("--scale", type=int, default=1)
    make.set_defaults(
        run=lambda options: make_pictures(options.folder, options.count, options.scale)
    )
    run = commands.add_parser("train")
    run.add_argument("folder", type=Path)
    run.add_argument("out", type=Path)
    run.add_argument("--workers", type=int, default=1)
    run.add_argument("--batch", type=int, default=32)
    run.add_argument("--epochs", type=int, default=3)
    run.add_argument("--work", type=int, default=1)
    run.add_argument("--sleep", type=float, default=0.0)
    run.add_argument("--repeat", type=int, default=1)
    run.add_argument("--shared", action="store_true")
    run.add_argument("--device", default="cuda")
    run.set_defaults(run=train)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
