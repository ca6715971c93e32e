"""`hydra/launcher=csub`: a multirun is one submission, and the failures in it are named."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from ..bed import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.long]

APPLICATION = """
import hydra
from omegaconf import DictConfig
from pathlib import Path

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(cfg: DictConfig) -> float:
    if cfg.seed in (7, 20, 33) and not Path("repaired").exists():
        raise ValueError(f"seed {cfg.seed} diverges")
    where = hydra.core.hydra_config.HydraConfig.get()
    Path(where.runtime.output_dir, "loss").write_text(f"{where.job.id} {cfg.seed * 2}")
    return cfg.seed

main()
"""


def test_a_sweep_of_forty_with_three_failures(user: CsubUser, clients_python: Path) -> None:
    (user.home / "train.py").write_text(textwrap.dedent(APPLICATION))
    ended = user.run(
        [
            str(clients_python), "-B", "train.py", "-m", "hydra/launcher=csub",
            "hydra.launcher.gres=gpu:1", "hydra.launcher.time=5", "hydra.launcher.mem=300M",
            "hydra.launcher.share=timeslice", "hydra.launcher.degree=8", "hydra.sweep.dir=runs",
            "hydra.sweep.subdir=${hydra.job.num}", "+seed=range(40)",
        ],
        check=False,
        timeout_s=500,
    )  # fmt: skip
    # hydra raises the first failure, when all have ended.
    assert ended.returncode == 1
    said = ended.stdout + ended.stderr
    assert "3 of 40 jobs did not complete:" in said
    assert "ValueError: seed 7 diverges" in ended.stderr
    (pack, *_) = json.loads(user.csub("queue", "--all", "--json").stdout)
    job_id = pack["member"].partition("/")[0]
    rows = user.members(job_id)
    assert {number for number, row in rows.items() if row["state"] == "FAILED"} == {7, 20, 33}
    assert len(rows) == 40
    # One submission in packs of eight, and each knows its overrides.
    assert len({row["slurm_job_id"] for row in rows.values()}) == 5
    assert {row["name"] for row in rows.values()} == {"train"}
    assert rows[12]["arguments"] == ["+seed=12"]
    # What has failed is tried again, with the overrides that it had.
    (user.home / "repaired").touch()
    user.csub("retry", "--failed", job_id)
    user.run(["csub", "wait", job_id], check=False, timeout_s=200)
    tries = user.members(job_id)
    again = [row for number, row in tries.items() if number not in rows]
    assert [(row["state"], row["arguments"]) for row in again] == [
        ("COMPLETED", [f"+seed={seed}"]) for seed in (7, 20, 33)
    ]
    losses = {path.parent.name: path.read_text() for path in user.home.glob("runs/*/loss")}
    assert losses == {str(n): f"{job_id}_{n} {n * 2}" for n in range(40)}


def test_an_option_that_csub_does_not_have_is_refused_by_hydra(
    user: CsubUser, clients_python: Path
) -> None:
    (user.home / "train.py").write_text(textwrap.dedent(APPLICATION))
    words = ["train.py", "-m", "hydra/launcher=csub", "hydra.launcher.grs=gpu:1", "+seed=1"]
    ended = user.run([str(clients_python), "-B", *words], check=False)
    assert ended.returncode == 1
    assert "Could not override 'hydra.launcher.grs'" in ended.stderr
    assert json.loads(user.csub("queue", "--all", "--json").stdout) == []
