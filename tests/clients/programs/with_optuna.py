"""Optuna: four workers, the tasks of an array, share one study in a journal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def load() -> optuna.Study:
    storage = JournalStorage(JournalFileBackend("journal.log"))
    return optuna.create_study(study_name="s", storage=storage, load_if_exists=True)


def measure(trial: optuna.Trial) -> float:
    return float(trial.suggest_float("x", -1, 1) ** 2)


if __name__ == "__main__" and sys.argv[1:] == ["work"]:
    load().optimize(measure, n_trials=3)
elif __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    load()
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--gres=gpu:1", "--mem=400M", "--time=5", "--array=0-3",
         f"--wrap={sys.executable} {__file__} work"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert submitted.strip().isdigit(), submitted
    while (count := sum(trial.state.is_finished() for trial in load().trials)) < 12:
        time.sleep(0.5)
    Path("answer.json").write_text(json.dumps(count))
