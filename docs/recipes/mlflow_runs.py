"""MLflow: each member is a run with its parameters, tagged with the member that it was.

    python mlflow_runs.py

MLFLOW_TRACKING_URI may name a server; here runs are files below ./mlruns.
"""

from __future__ import annotations

import os
from pathlib import Path

import mlflow

from slurm_colloc import Executor

EXPERIMENT = "csub"


def train(uri: str, lr: float) -> float:
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run(run_name=os.environ["SLURM_COLLOC_NAME"]):
        mlflow.set_tag("csub.member", os.environ["SLURM_COLLOC_MEMBER"])
        mlflow.log_param("lr", lr)
        loss = (lr - 0.2) ** 2
        mlflow.log_metric("loss", loss)
        return loss


if __name__ == "__main__":
    uri = os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()
    mlflow.set_tracking_uri(uri)
    # Before the members do: two would make it at once.
    mlflow.set_experiment(EXPERIMENT)
    rates = [0.1, 0.2, 0.3]
    with Executor("csub_calls", gres="gpu:1", time=30, mem="1G") as executor:
        losses = list(executor.map(train, [uri] * len(rates), rates))
    print(f"best lr {min(zip(losses, rates, strict=True))[1]}")
