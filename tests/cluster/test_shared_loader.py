"""Members of one pack share one loader; each has each sample once."""

from __future__ import annotations

import json

import pytest

from ..bed import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

TRAIN = """\
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset
import slurm_colloc

class Pictures(Dataset):
    def __len__(self):
        return 300
    def __getitem__(self, index):
        return index, os.getpid()

torch.manual_seed(int(sys.argv[1]))
loader = slurm_colloc.shared(DataLoader(Pictures(), batch_size=4, shuffle=True))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
seen = []
for epoch in range(2):
    ids, makers = [], set()
    for numbers, made_by in loader:
        ids += numbers.tolist()
        makers |= set(made_by.tolist())
        model(numbers.float().unsqueeze(1) / 300).sum().backward()
        optimizer.step()
    seen.append([ids, sorted(makers)])
print(json.dumps(seen))
"""


def test_four_members_share_one_producer(user: CsubUser) -> None:
    pytest.importorskip("torch")
    (user.home / "train.py").write_text(TRAIN)
    names = [f"{number}.sh" for number in range(4)]
    for number, name in enumerate(names):
        user.script(name, f'exec python3 "$HOME/train.py" {number}')
    answer = user.csub(
        "pack", "--parsable", "--share=timeslice", "--degree=4", "--gres=gpu:1", "-c1",
        "--mem=1G", "--time=10", *names,
    )  # fmt: skip
    job_id = answer.stdout.strip()
    rows = user.finish(job_id, patience_s=300)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 4, user.describe(job_id)
    # Before its own words it says with whom it shares.
    told = [user.output(f"slurm-{job_id}_{number}.out").splitlines() for number in rows]
    assert all("the loader of Pictures is shared with members " in lines[0] for lines in told)
    seen = [json.loads(lines[-1]) for lines in told]
    for epoch in range(2):
        for member in seen:
            assert sorted(member[epoch][0]) == list(range(300))
        # One process has made all of it, and all have its order.
        assert seen[0][epoch][1:] == [seen[0][epoch][1][:1]]
        assert [member[epoch] for member in seen] == [seen[0][epoch]] * 4
    assert seen[0][0][0] != seen[0][1][0]
