"""Kaldi's slurm.pl: arrays of which all succeed, one task fails, and one task is cancelled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

CONFIG = """\
command sbatch --export=PATH --ntasks-per-node=1
option time=* --time $0
option mem=* --mem $0
option mem=0
option num_threads=* --cpus-per-task $0
option gpu=0
option gpu=* --gres=gpu:$0
"""
OPTIONS = ("--config", "slurm.conf", "--gpu", "1", "--mem", "50M", "--time", "5")


def start(name: str, command: str) -> subprocess.Popen[bytes]:
    words = [os.environ["SLURM_PL"], *OPTIONS, "JOB=1:4", f"log/{name}.JOB.log"]
    return subprocess.Popen(["perl", *words, "bash", "-c", command], stderr=subprocess.DEVNULL)


def read_ends(name: str) -> list[str]:
    logs = [Path(f"log/{name}.{number}.log").read_text() for number in range(1, 5)]
    return [re.findall(r"with status (\d+)", text)[-1:] for text in logs]  # type: ignore[misc]


if __name__ == "__main__":
    Path("slurm.conf").write_text(CONFIG)
    Path("path.sh").touch()
    answer = {}
    for name, command in (("good", "exit 0"), ("bad", "[ JOB != 3 ]")):
        answer[name] = [start(name, command).wait(), read_ends(name)]
    waiting = start("long", "touch up.JOB; until [ -e go ]; do sleep 0.1; done")
    while len(list(Path().glob("up.*"))) < 4:
        time.sleep(0.1)
    (job_id,) = re.findall(r"Submitted batch job (\d+)", Path("log/q/long.log").read_text())
    subprocess.run(["scancel", f"{job_id}_2"], check=True)
    while (
        f"{job_id}_2 "
        in subprocess.run(
            ["squeue", "-h", "-r", "-j", job_id, "-o", "%i "],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    ):
        time.sleep(0.3)
    Path("go").touch()
    while read_ends("long") != [["0"], [], ["0"], ["0"]]:
        time.sleep(0.3)
    # It waits until Slurm has forgotten the job.
    waiting.kill()
    waiting.wait()
    Path("answer.json").write_text(json.dumps(answer))
