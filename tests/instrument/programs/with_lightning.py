"""Trains with Lightning, with validation and accumulated gradients; prints its global step."""

from __future__ import annotations

import importlib
import json
import warnings
from typing import Any

import torch

warnings.filterwarnings("ignore")
# By name, so that the type checker does not read all of it.
pl: Any = importlib.import_module("lightning.pytorch")


class Regression(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = 0

    def training_step(self, batch: Any, _number: int) -> Any:
        self.seen += len(batch[0])
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, _number: int) -> Any:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def build_loader(rows: int) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(rows, 4), torch.randn(rows, 1))
    return torch.utils.data.DataLoader(data, batch_size=4)


def main() -> None:
    torch.set_num_threads(1)
    model = Regression()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, build_loader(22), build_loader(9))
    print("\n" + json.dumps({"steps": trainer.global_step, "samples": model.seen}))


if __name__ == "__main__":
    main()
