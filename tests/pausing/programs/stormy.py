"""Programs of users that run until a file is there, and then print the steps that they have made.

stormy.py loader|ranks|lightning|trainer|server STOP
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

STOP = Path(sys.argv[2])


def tell(steps: int) -> None:
    print(f"steps {steps}", flush=True)


def train(batches: Any, network: Any = None) -> int:
    """Plain PyTorch over and over, until the file is there."""
    import torch

    torch.set_num_threads(1)
    model = network or torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while not STOP.exists():
        for rows in batches:
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            steps += 1
    return steps


def run_loader() -> None:
    """Two workers load what is trained with."""
    import torch

    loader = torch.utils.data.DataLoader(list(torch.randn(512, 4)), batch_size=8, num_workers=2)
    tell(train(loader))


def run_ranks() -> None:
    """Two ranks under torchrun, which agree when it is over."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, over = 0, torch.zeros(1)
    while not over.item():
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            steps += 1
        over = torch.tensor([float(STOP.exists())])
        dist.all_reduce(over)
    if dist.get_rank() == 0:
        tell(steps)
    dist.destroy_process_group()


def run_lightning() -> None:
    """Lightning's trainer, ended from inside."""
    import torch

    # By name, so that the type checker does not read all of it.
    pl: Any = importlib.import_module("lightning.pytorch")

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, rows: Any, _number: int) -> Any:
            self.trainer.should_stop = STOP.exists()
            return self.layer(rows).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(list(torch.randn(4096, 4)), batch_size=4)
    trainer.fit(Model(), loader)
    tell(trainer.global_step)


def run_trainer() -> None:
    """Hugging Face's Trainer, ended by a callback."""
    transformers: Any = importlib.import_module("transformers")
    import torch

    class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> Any:
            row = (torch.arange(6) + index) % 16
            return {"input_ids": row, "labels": row}

    class End(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = STOP.exists()

    torch.set_num_threads(1)
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        output_dir="checkpoints", num_train_epochs=100, per_device_train_batch_size=2,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=Numbers(),
        callbacks=[End()],
    )  # fmt: skip
    tell(trainer.train().global_step)


def run_server() -> None:
    """A process for each request, as forking servers have it; each counts a line."""
    from slurm_colloc import progress

    steps = 0
    log = Path("requests")
    while not STOP.exists():
        child = os.fork()
        if child == 0:
            with log.open("a") as file:
                file.write("x\n")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        steps += 1
        progress.step()
    assert len(log.read_text().splitlines()) == steps
    tell(steps)


if __name__ == "__main__":
    globals()[f"run_{sys.argv[1]}"]()
