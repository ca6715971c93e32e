"""Lightning with its own requeue: checkpoints at SIGUSR1, asks for a requeue, and goes on."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import torch

warnings.filterwarnings("ignore")

import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.plugins.environments import SLURMEnvironment  # noqa: E402

STEPS = 800
STEP_S = 0.25


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def on_train_start(self) -> None:
        with Path("starts").open("a") as file:
            restart = os.environ.get("SLURM_RESTART_COUNT", "0")
            file.write(f"{restart} {self.trainer.global_step}\n")

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        time.sleep(STEP_S)
        with Path("steps").open("a") as file:
            file.write(f"{self.trainer.global_step}\n")
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    assert SLURMEnvironment.detect()
    x = torch.randn(80, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        plugins=[SLURMEnvironment(auto_requeue=True)],
        default_root_dir=".",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=4))
    Path("ended").write_text(f"{trainer.global_step}\n")
