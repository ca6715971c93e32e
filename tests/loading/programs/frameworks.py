"""Trains with Lightning and with the Trainer of transformers, as a member that has company.

    python frameworks.py DIRECTORY

Prints the samples that each saw, and whether the program itself made any.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import transformers
from torch.utils.data import DataLoader, Dataset

from slurm_colloc.loading.members import MeetingPlace
from slurm_colloc.loading.same_loader import identify
from slurm_colloc.loading.shared_loader import shared


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index)]), "maker": os.getpid()}


class Seen:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.own = False

    def note(self, batch: dict[str, Any]) -> None:
        self.ids += [int(each) for each in batch["x"].flatten().tolist()]
        self.own |= os.getpid() in batch["maker"].tolist()


def find_company(pack: Path, loader: Any) -> MeetingPlace:
    os.environ["SLURM_COLLOC_PROGRESS"] = str(pack / "0009.1")
    place = MeetingPlace(str(pack), *identify(loader, None))
    place.note_in_vain(place.name)
    os.environ["SLURM_COLLOC_PROGRESS"] = str(pack / "0001.1")
    return place


def train_with_lightning(pack: Path) -> Seen:
    seen = Seen()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, Any], number: int) -> Any:
            del number
            seen.note(batch)
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = DataLoader(Pairs(), batch_size=5, shuffle=True)
    company = find_company(pack, loader)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), shared(loader))
    company.leave()
    return seen


def train_with_trainer(pack: Path, output: Path) -> Seen:
    seen = Seen()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, maker: Any) -> dict[str, Any]:
            seen.note({"x": x, "maker": maker})
            return {"loss": self.layer(x).square().mean()}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            self.company = find_company(pack, loader.base_dataloader)
            return shared(loader)

    arguments = transformers.TrainingArguments(
        output_dir=str(output), use_cpu=True, num_train_epochs=1, report_to=[],
        per_device_train_batch_size=5, save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    Trainer(model=Model(), args=arguments, train_dataset=Pairs()).train()
    return seen


def main() -> None:
    warnings.simplefilter("ignore")
    directory = Path(sys.argv[1])
    pack = directory / "pack"
    directory.mkdir()
    pack.mkdir(mode=0o700)
    stdout = os.dup(1)
    os.dup2(2, 1)
    found = {
        "lightning": vars(train_with_lightning(pack)),
        "trainer": vars(train_with_trainer(pack, directory / "output")),
    }
    os.write(stdout, json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
