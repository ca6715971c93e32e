"""Lightning with its default logger, which names its folder after SLURM_JOB_ID."""

from __future__ import annotations

import sys
import warnings

import torch

warnings.filterwarnings("ignore")

import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402


class Regression(pl.LightningModule):
    def __init__(self, task: int) -> None:
        super().__init__()
        self.task = task
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    x = torch.randn(80, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        default_root_dir="runs",
        logger=CSVLogger("runs"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(int(sys.argv[1])), torch.utils.data.DataLoader(data, batch_size=20))
