"""Four trainings as users write them with a framework, each as long as it once was alone.

train_frameworks.py loader|trainer|lightning|graph WORK [--seconds 40] [--device cuda]

The first run trains for so many seconds after its first step, and writes its steps to the file
WORK; any later one makes as many.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Work:
    """Says after each step whether the training is over."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._steps = int(path.read_text()) if path.exists() else None
        self._first_at = 0.0
        self.done = 0

    def is_over(self) -> bool:
        """Call once after each step."""
        self.done += 1
        now = time.monotonic()
        self._first_at = self._first_at or now
        if self._steps is not None:
            return self.done >= self._steps
        return now - self._first_at >= self._seconds

    def write(self) -> None:
        """Keep how many steps were made."""
        if self._steps is None:
            self._path.write_text(str(self.done))
        print(f"steps {self.done}", flush=True)


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images that a worker has to turn and cut first, as augmentation does."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.rand(3, 40, 40)
        return image.flip(2)[:, 4:36, 4:36].contiguous(), index % 10


def train_images(work: Work, device: str) -> None:
    """A ResNet-18 of timm, and a DataLoader with two workers."""
    timm: Any = importlib.import_module("timm")
    network = timm.create_model("resnet18", num_classes=10).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    loader = torch.utils.data.DataLoader(Images(), batch_size=64, num_workers=2, pin_memory=True)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(network(images.to(device)), labels.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if work.is_over():
            return


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Lines of 128 words."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(128) * (index % 7 + 1)) % 1000
        return {"input_ids": row, "labels": row}


def train_words(work: Work, device: str) -> None:
    """A small GPT-2 under the Trainer of Hugging Face."""
    transformers: Any = importlib.import_module("transformers")

    class End(transformers.TrainerCallback):
        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = work.is_over()

    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        output_dir="checkpoints", max_steps=10_000_000, per_device_train_batch_size=16,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=device == "cpu",
    )  # fmt: skip
    transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=Words(),
        callbacks=[End()],
    ).train()  # fmt: skip


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of 256 numbers."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), float(index % 13))


def train_rows(work: Work, device: str) -> None:
    """A network of three layers under Lightning."""
    lightning: Any = importlib.import_module("lightning.pytorch")
    environments: Any = importlib.import_module("lightning.pytorch.plugins.environments")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(256, 1024), torch.nn.ReLU(),
                torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1),
            )  # fmt: skip

        def training_step(self, rows: Any, _number: int) -> Any:
            self.trainer.should_stop = work.is_over()
            return self.layers(rows).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu", devices=1, max_epochs=-1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        # It would start MPI where mpi4py is installed.
        plugins=[environments.LightningEnvironment()],
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(Rows(), batch_size=256))


def find_edges(nodes: int, degree: int) -> Iterator[tuple[int, int]]:
    """Edges of a graph, the same in each run."""
    for node in range(nodes):
        for step in range(1, degree + 1):
            yield node, (node * 31 + step * 977) % nodes


def train_graph(work: Work, device: str) -> None:
    """A graph convolution of two layers by PyTorch Geometric, over a whole graph."""
    convolutions: Any = importlib.import_module("torch_geometric.nn")
    nodes = 20_000
    edges = torch.tensor(list(find_edges(nodes, 10))).t().contiguous().to(device)
    numbers = torch.rand(nodes, 128, device=device)
    labels = torch.randint(0, 40, (nodes,), device=device)
    first, second = convolutions.GCNConv(128, 256), convolutions.GCNConv(256, 40)
    network = torch.nn.ModuleList([first, second]).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    is_over = False
    while not is_over:
        optimizer.zero_grad()
        found = second(first(numbers, edges).relu(), edges)
        torch.nn.functional.cross_entropy(found, labels).backward()
        optimizer.step()
        is_over = work.is_over()


TRAININGS = {
    "loader": train_images,
    "trainer": train_words,
    "lightning": train_rows,
    "graph": train_graph,
}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    work = Work(given.work, given.seconds)
    TRAININGS[given.training](work, given.device)
    work.write()


if __name__ == "__main__":
    main()
