import argparse
import logging
import warnings

import torch

warnings.filterwarnings("ignore")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-epochs", type=int, default=1)
    options = parser.parse_args()
    pl.seed_everything(7)
    x = torch.randn(16, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=options.max_epochs,
        callbacks=[ModelCheckpoint(filename="{epoch}-{loss:.2f}", monitor="loss")],
        logger=pl.loggers.CSVLogger("."),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=4))
    found = SLURMEnvironment.detect()
    print(f"plugin: slurm {found}, job name {SLURMEnvironment.job_name()}")
    print(f"step {trainer.global_step}, rank {trainer.global_rank} of {trainer.world_size}")


if __name__ == "__main__":
    main()
