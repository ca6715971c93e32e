"""Optuna: four workers on one study, as calls of one submission that share GPUs.

    python optuna_workers.py

A journal on the shared file system is all that the workers share: no database, no server.
"""

from __future__ import annotations

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from slurm_colloc import Executor

WORKERS = 4
TRIALS_EACH = 5


def open_study() -> optuna.Study:
    storage = JournalStorage(JournalFileBackend("optuna.log"))
    return optuna.create_study(study_name="lr", storage=storage, load_if_exists=True)


def train(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    # Here a model would be trained, and its loss returned.
    return (lr - 1e-3) ** 2


def work(worker: int) -> int:
    """One worker, in its member: it takes trials until it has done its share."""
    open_study().optimize(train, n_trials=TRIALS_EACH)
    return worker


if __name__ == "__main__":
    open_study()
    with Executor("csub_calls", gres="gpu:1", time=30, mem="1G") as executor:
        list(executor.map(work, range(WORKERS)))
    study = open_study()
    print(f"{len(study.trials)} trials, best {study.best_params}")
