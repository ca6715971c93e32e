"""SEML's own submit function, without its database: it takes the last word for the array's id."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from seml.commands.start import start_sbatch_job
from seml.utils.slurm import get_slurm_arrays_tasks


class Collection:
    """Notes what SEML writes into its database."""

    name = "experiments"

    def __init__(self) -> None:
        self.written: list[Any] = []

    def update_many(self, chosen: Any, change: Any) -> None:
        self.written.append((chosen, change))


if __name__ == "__main__":
    collection = Collection()
    # sbatch is called with these variables and no other.
    kept = ("HOME", "PATH", "SLURM_CONF", "XDG_STATE_HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    shared = {"executable": "x.py", "env": environment}
    experiments = [
        {"_id": number, "batch_id": 1, "seml": shared, "config": {}} for number in range(3)
    ]
    job_id = start_sbatch_job(
        collection, experiments, 0,
        {"gres": "gpu:1", "mem": "300M", "time": "0-00:05", "begin": "now+60"},
        name="seml", output_path=".",
    )  # fmt: skip
    shown = subprocess.run(
        ["squeue", "-h", "-j", str(job_id), "-o", "%j"], check=False, capture_output=True, text=True
    ).stdout.split()
    # SEML takes experiments for killed whose tasks squeue does not list.
    waiting, running = get_slurm_arrays_tasks(filter_by_user=True).get(job_id, ([], []))
    tasks = sorted({number for numbers in waiting for number in numbers} | set(running))
    subprocess.run(["scancel", str(job_id)], check=True)
    values = collection.written[0][1]["$set"]
    answer = [isinstance(job_id, int), values["slurm.0.num_tasks"], sorted(set(shown)), tasks]
    Path("answer.json").write_text(json.dumps(answer))
