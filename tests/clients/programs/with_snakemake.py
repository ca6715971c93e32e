"""Snakemake's executor for Slurm: single jobs, a rule as a job array, and a job that fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SNAKEFILE = """
rule all:
    input: expand("out/{number}.txt", number=range(COUNT))

rule one:
    output: "out/{number}.txt"
    resources: runtime=5, mem_mb=600, gres="gpu:1"
    shell: "test {wildcards.number} -lt 4 && echo {wildcards.number} > {output}"
"""

# Its job step takes SLURM_CONF out of the environment of its own srun, which works only where
# slurm.conf lies at its usual place.
SRUN = """#!/bin/sh
SLURM_CONF={} exec {} "$@"
"""


def run(name: str, count: int, *options: str) -> list[object]:
    """What is left of a run of Snakemake in a directory of its own."""
    folder = Path(name)
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE.replace("COUNT", str(count)))
    words = [
        sys.executable, "-m", "snakemake", "--executor=slurm", "--jobs=4", "--keep-going",
        "--default-resources", "slurm_partition=gpu", "--slurm-no-account",
        "--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=2", *options,
    ]  # fmt: skip
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    files = {path.name: path.read_text().split()[-1] for path in folder.glob("out/*")}
    failed = ended.stdout.count("SLURM status is: 'FAILED'") + ended.stderr.count(
        "SLURM status is: 'FAILED'"
    )
    return [ended.returncode, sorted(files.items()), failed]


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
        "alone": run("alone", 3),
        # Each task of an array also looks for the first one's file: where that fails, all fail.
        "array": run("array", 4, "--slurm-array-jobs=all"),
        "failure": run("failure", 5),
    }
    # Two runs that fail alike would say nothing.
    assert answer["alone"][0] == answer["array"][0] == 0, answer
    Path("answer.json").write_text(json.dumps(answer))
