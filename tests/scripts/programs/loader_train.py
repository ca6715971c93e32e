import argparse
import os
import warnings

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

# A node of a private Slurm may claim more CPUs than there are.
warnings.filterwarnings("ignore", message="This DataLoader will create")

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--logdir", default="runs")
options = parser.parse_args()


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((4,), float(index)), os.getpid()


if __name__ == "__main__":
    writer = SummaryWriter(options.logdir)
    seen = set()
    total = 0.0
    loader = DataLoader(Rows(), batch_size=3, num_workers=options.workers)
    for step, (rows, pids) in enumerate(loader):
        total += rows.sum().item()
        seen |= set(pids.tolist())
        writer.add_scalar("sum", total, step)
    writer.close()
    print(f"sum {total:g} from {len(seen)} workers, {os.getpid() in seen=}")
