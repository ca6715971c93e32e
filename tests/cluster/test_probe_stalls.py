"""csub probe --stalls: one job tells what holds a training up."""

from __future__ import annotations

import sys

import pytest

from ..bed import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

REQUEST = ("--gres=gpu:1", "-c1", "--mem=2G", "--time=8")

# What it decodes takes ten times as long as its steps.
TRAIN = """\
import time, torch
from torch.utils.data import DataLoader, Dataset{iterable}

class Pictures(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        time.sleep(0.005)
        return torch.zeros(8)

class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(8)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for batch in DataLoader({data}, batch_size=4):
        time.sleep(0.002)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def probe(user: CsubUser, data: str) -> tuple[int, str, str]:
    (user.home / "train.py").write_text(TRAIN.format(iterable=", IterableDataset", data=data))
    user.script("train.sh", f'exec {sys.executable} "$HOME/train.py"')
    argv = ["csub", "probe", "--stalls", *REQUEST, "train.sh"]
    told = user.run(argv, check=False, timeout_s=400.0)
    return told.returncode, told.stdout, told.stderr


def test_decoding_is_told_with_advice(mps_user: CsubUser) -> None:
    code, said, noted = probe(mps_user, "Pictures()")
    assert code == 0, noted
    assert "decoding holds it up for" in said
    assert "num_workers=" in said
    assert "[#" in said
    (row,) = mps_user.members("last").values()
    assert (row["state"], row["reason"]) == ("CANCELLED", "its probe window is over")
    # What it used with changed input is no usage profile.
    assert mps_user.csub("profile", "list", "--json").stdout.strip() == "[]"


def test_an_iterable_data_set_is_said_to_be_one(mps_user: CsubUser) -> None:
    code, _, noted = probe(mps_user, "Stream()")
    assert code == 1
    assert "what holds it up is not told: its data set is an IterableDataset" in noted
