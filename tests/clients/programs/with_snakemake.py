"""Snakemake's executor for Slurm: single jobs, a rule as a job array, a job that fails, jobs that
are cancelled with it, and jobs that wait for another in Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SNAKEFILE = """
rule all:
    input: expand("out/{number}.txt", number=range(COUNT))

rule one:
    output: "out/{number}.txt"
    resources: runtime=5, mem_mb=600, gres="gpu:1"
    shell: "test {wildcards.number} -lt 4 && echo {wildcards.number} > {output}"
"""

ENDLESS = """
rule all:
    input: expand("out/{number}.txt", number=range(2))

rule one:
    output: "out/{number}.txt"
    resources: runtime=5, mem_mb=600, gres="gpu:1"
    shell: "touch began.{wildcards.number}; sleep 300; touch {output}"
"""

AFTER = """
rule all:
    input: expand("out/{number}.txt", number=range(2))

rule one:
    output: "out/{number}.txt"
    resources: runtime=5, mem_mb=600, gres="gpu:1", slurm_extra="--dependency=afterok:FIRST"
    shell: "test -e first && echo {wildcards.number} > {output}"
"""

# Its job step takes SLURM_CONF out of the environment of its own srun, which works only where
# slurm.conf lies at its usual place.
SRUN = """#!/bin/sh
SLURM_CONF={} exec {} "$@"
"""


WORDS = [
    sys.executable, "-m", "snakemake", "--executor=slurm", "--jobs=4", "--keep-going",
    "--default-resources", "slurm_partition=gpu", "--slurm-no-account",
    "--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=2",
]  # fmt: skip


def prepare(name: str, snakefile: str) -> Path:
    folder = Path(name)
    folder.mkdir()
    (folder / "Snakefile").write_text(snakefile)
    return folder


def run(name: str, snakefile: str, *options: str) -> list[object]:
    """What is left of a run of Snakemake in a directory of its own."""
    folder = prepare(name, snakefile)
    words = [*WORDS, *options]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    files = {path.name: path.read_text().split()[-1] for path in folder.glob("out/*")}
    failed = ended.stdout.count("SLURM status is: 'FAILED'") + ended.stderr.count(
        "SLURM status is: 'FAILED'"
    )
    return [ended.returncode, sorted(files.items()), failed]


def run_and_cancel(name: str) -> list[object]:
    """What is left where it is told to end while its jobs run."""
    folder = prepare(name, ENDLESS)
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(WORDS, cwd=folder, stdout=told, stderr=told)
    while not all((folder / f"began.{number}").exists() for number in range(2)):
        assert process.poll() is None, (folder / "told").read_text()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    status = process.wait()
    since = time.monotonic()
    squeue = ["squeue", "-h", "--me"]
    while left := subprocess.run(squeue, capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < since + 60, left
        time.sleep(0.5)
    return [status != 0, sorted(path.name for path in folder.glob("out/*"))]


def run_after(name: str) -> list[object]:
    """Its jobs wait for one that it has not submitted."""
    first = Path(name).absolute() / "first"
    words = ["sbatch", "--parsable", "--gres=gpu:1", "--mem=300M", "--time=5", "--output=first.out"]
    asked = subprocess.run(
        [*words, f"--wrap=sleep 8; touch {first}"], capture_output=True, text=True, check=True
    )
    return run(name, AFTER.replace("FIRST", asked.stdout.strip()))


if __name__ == "__main__":
    srun = shutil.which("srun")
    assert srun is not None
    site = Path("site").absolute()
    site.mkdir()
    (site / "srun").write_text(SRUN.format(os.environ["SLURM_CONF"], srun))
    (site / "srun").chmod(0o755)
    first, _, rest = os.environ["PATH"].partition(":")
    # Behind the directory that may hold csub under the name sbatch.
    os.environ["PATH"] = f"{first}:{site}:{rest}"
    os.environ["HOME"] = str(Path.cwd())
    answer = {
        "alone": run("alone", SNAKEFILE.replace("COUNT", "3")),
        # Each task of an array also looks for the first one's file: where that fails, all fail.
        "array": run("array", SNAKEFILE.replace("COUNT", "4"), "--slurm-array-jobs=all"),
        "failure": run("failure", SNAKEFILE.replace("COUNT", "5")),
        "after": run_after("after"),
        "cancelled": run_and_cancel("cancelled"),
    }
    # Two runs that fail alike would say nothing.
    assert answer["alone"][0] == answer["array"][0] == answer["after"][0] == 0, answer
    Path("answer.json").write_text(json.dumps(answer))
