"""Weights & Biases: each member is a run, in the group of its submission.

    python wandb_runs.py

Without a network, WANDB_MODE=offline keeps runs in ./wandb; `wandb sync` sends them later.
"""

from __future__ import annotations

import os

import wandb

from slurm_colloc import Executor


def train(lr: float, seed: int) -> float:
    # 4711_3: by this name csub's commands know the member, and W&B the run.
    member = os.environ["SLURM_COLLOC_NAME"]
    group = member.partition("_")[0]
    with wandb.init(
        project="csub", name=member, group=group, config={"lr": lr, "seed": seed}
    ) as run:
        loss = 1.0
        for _ in range(10):
            loss *= 1 - lr
            run.log({"loss": loss})
        return loss


if __name__ == "__main__":
    grid = [(lr, seed) for lr in (0.1, 0.2) for seed in range(2)]
    with Executor("csub_calls", gres="gpu:1", time=30, mem="1G") as executor:
        jobs = executor.map_array(train, *zip(*grid, strict=True))
        for job, (lr, seed) in zip(jobs, grid, strict=True):
            print(f"{job.member}  lr={lr} seed={seed}  loss={job.result():.3f}")
