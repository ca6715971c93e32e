"""slurmpy: takes the last word of sbatch's answer for the id, and chains by it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from slurmpy import Slurm

if __name__ == "__main__":
    asked = {"gres": "gpu:1", "mem": "200M", "time": "5"}
    folders = {"scripts_dir": "scripts", "log_dir": "logs", "date_in_name": False}
    first = Slurm("prep", dict(asked), **folders).run("echo 7 > prepared")
    second = Slurm("next", dict(asked), **folders).run(
        "cat prepared > seen.part; mv seen.part seen", depends_on=[first]
    )
    while not Path("seen").exists():
        time.sleep(0.1)
    answer = [isinstance(first, int), isinstance(second, int), Path("seen").read_text()]
    Path("answer.json").write_text(json.dumps(answer))
