"""Snakemake's executor for Slurm: twenty rules, each a small job of its own on a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SNAKEFILE = """
rule all:
    input: "total.txt"

rule train:
    output: "out/{number}.txt"
    resources: runtime=5, mem_mb=300, gres="gpu:1"
    shell: "sleep 8 && echo {wildcards.number} $SLURM_JOB_ID > {output}"

rule collect:
    input: expand("out/{number}.txt", number=range(20))
    output: "total.txt"
    resources: runtime=5, mem_mb=300
    shell: "cat {input} > {output}"
"""

# See with_snakemake.py.
SRUN = """#!/bin/sh
SLURM_CONF={} exec {} "$@"
"""

if __name__ == "__main__":
    srun = shutil.which("srun")
    assert srun is not None
    site = Path("site").absolute()
    site.mkdir()
    (site / "srun").write_text(SRUN.format(os.environ["SLURM_CONF"], srun))
    (site / "srun").chmod(0o755)
    first, _, rest = os.environ["PATH"].partition(":")
    os.environ["PATH"] = f"{first}:{site}:{rest}"
    os.environ["HOME"] = str(Path.cwd())
    Path("Snakefile").write_text(SNAKEFILE)
    words = [
        sys.executable, "-m", "snakemake", "--executor=slurm", "--jobs=20",
        "--default-resources", "slurm_partition=gpu", "--slurm-no-account",
        "--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=2",
    ]  # fmt: skip
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line.split() for line in Path("total.txt").read_text().splitlines()]
    answer = {"numbers": [number for number, _ in rows], "ids": len({job for _, job in rows})}
    Path("answer.json").write_text(json.dumps(answer))
