"""Small trainings of five kinds, as users write them: fixed work, then a line with what they did.

afternoon_trainings.py KIND STEPS [--device cuda]

`residual` (timm's ResNet-26 on 32 x 32, cuDNN tries its algorithms), `loader` (ResNet-18 with one
DataLoader worker), `trainer` (a small GPT-2 by Hugging Face's Trainer), `lightning` (an MLP),
`graph` (three graph convolutions). On a device without a GPU each makes its steps without work.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

warnings.filterwarnings("ignore")


class Work:
    """Counts steps."""

    def __init__(self, steps: int) -> None:
        self.wanted = steps
        self.done = 0
        self.first_at: float | None = None
        self.last_at = 0.0

    def is_over(self) -> bool:
        """Call after each step; the first one does not count."""
        if self.first_at is None:
            torch.cuda.synchronize()
            self.first_at = time.time()
            return False
        self.done += 1
        if self.done < self.wanted:
            return False
        torch.cuda.synchronize()
        self.last_at = time.time()
        return True


def train(model: Any, batches: Iterator[tuple[Any, Any]], work: Work, *, half: bool) -> None:
    """Plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for images, labels in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            loss = loss_of(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if work.done % 4 == 0 and not half:
            torch.cuda.synchronize()
        if work.is_over():
            return


def train_residual(work: Work) -> None:
    timm: Any = importlib.import_module("timm")
    torch.backends.cudnn.benchmark = True
    model = timm.create_model("resnet26", num_classes=10).cuda()
    model = model.to(memory_format=torch.channels_last)
    images = [
        torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
        for _ in range(4)
    ]
    labels = torch.randint(0, 10, (128,), device="cuda")

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            for image in images:
                yield image, labels

    train(model, batches(), work, half=False)


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pictures in memory that are cut and turned."""

    def __init__(self) -> None:
        transforms: Any = importlib.import_module("torchvision.transforms")
        size = 32
        self._images = (torch.rand(4096, 3, size, size) * 255).byte()
        self._labels = torch.randint(0, 10, (4096,))
        self._change = transforms.Compose(
            [
                transforms.RandomCrop(size, 4),
                transforms.RandomHorizontalFlip(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._change(self._images[index].float() / 255), self._labels[index]


def train_loader(work: Work) -> None:
    torchvision: Any = importlib.import_module("torchvision")
    loader = torch.utils.data.DataLoader(
        Images(), batch_size=64, shuffle=True, num_workers=1, pin_memory=True,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    model = torchvision.models.resnet18(num_classes=10).cuda()

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            for images, labels in loader:
                on_gpu = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
                yield on_gpu, labels.cuda(non_blocking=True)

    train(model.to(memory_format=torch.channels_last), batches(), work, half=True)


def train_trainer(work: Work) -> None:
    hugging: Any = importlib.import_module("transformers")

    class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
            words = torch.randint(0, 8192, (128,))
            return {"input_ids": words, "labels": words}

    class Stop(hugging.TrainerCallback):
        def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
            if work.is_over():
                control.should_training_stop = True

    config = hugging.GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=8192, n_positions=128)
    arguments = hugging.TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=10**7,
        logging_strategy="no", save_strategy="no", report_to=[], bf16=True, disable_tqdm=True,
        dataloader_num_workers=0,
    )  # fmt: skip
    hugging.Trainer(
        model=hugging.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Words(),
        callbacks=[Stop()],
    ).train()


def train_lightning(work: Work) -> None:
    try:
        lightning: Any = importlib.import_module("lightning.pytorch")
    except ImportError:
        lightning = importlib.import_module("pytorch_lightning")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers: list[Any] = []
            for _ in range(6):
                layers += [
                    torch.nn.Linear(1024, 1024), torch.nn.LayerNorm(1024), torch.nn.GELU()
                ]  # fmt: skip
            self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 1))

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if work.is_over():
                trainer.should_stop = True

    data = torch.utils.data.TensorDataset(torch.randn(65536, 1024), torch.randn(65536, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=256, shuffle=True, num_workers=0)
    lightning.Trainer(
        max_epochs=10**6, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Stop()],
    ).fit(Model(), loader)  # fmt: skip


def train_graph(work: Work) -> None:
    convolution: Any = importlib.import_module("torch_geometric.nn").GCNConv
    nodes, edges = 20_000, 400_000
    features = torch.randn(nodes, 128).cuda()
    index = torch.randint(0, nodes, (2, edges)).cuda()
    labels = torch.randint(0, 16, (nodes,)).cuda()
    layers = [
        convolution(128, 256).cuda(),
        convolution(256, 256).cuda(),
        convolution(256, 16).cuda(),
    ]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], 1e-3)
    while True:
        hidden = torch.relu(layers[0](features, index))
        hidden = layers[2](torch.relu(layers[1](hidden, index)), index)
        loss = torch.nn.functional.cross_entropy(hidden, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if work.is_over():
            return


def train_nothing(work: Work) -> None:
    """The steps of an optimizer on the CPU, for trying the suite."""
    weights = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weights], 1e-3)
    work.first_at = time.time()
    while work.done < work.wanted:
        weights.grad = torch.ones(4)
        optimizer.step()
        work.done += 1
        time.sleep(0.02)
    work.last_at = time.time()


KINDS: dict[str, Callable[[Work], None]] = {
    "residual": train_residual,
    "loader": train_loader,
    "trainer": train_trainer,
    "lightning": train_lightning,
    "graph": train_graph,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("steps", type=int)
    parser.add_argument("note", nargs="?", default="", help="another argument, as users have them")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work, begun_at = Work(given.steps), time.time()
    (KINDS[given.kind] if given.device == "cuda" else train_nothing)(work)
    first_at = work.first_at or begun_at
    told = {
        "kind": given.kind,
        "start_s": first_at - begun_at,
        "steps_per_s": work.done / (work.last_at - first_at),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
