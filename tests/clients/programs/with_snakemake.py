"""Snakemake: each job of a rule is a job of Slurm, or a task of an array."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SNAKEFILE = """
rule all:
    input: "sum.txt"
rule square:
    output: "out/{i}.txt"
    resources: gres="gpu:1", mem_mb=300, runtime=5
    shell: "echo $(( {wildcards.i} * {wildcards.i} )) > {output}"
rule add:
    input: expand("out/{i}.txt", i=range(4))
    output: "sum.txt"
    resources: gres="gpu:1", mem_mb=300, runtime=5
    shell: "cat {input} | paste -sd+ | bc > {output} || cat {input} > {output}"
"""

if __name__ == "__main__":
    Path("Snakefile").write_text(SNAKEFILE)
    subprocess.run(
        [
            sys.executable, "-m", "snakemake", "--executor", "slurm", "--jobs", "5",
            "--latency-wait", "30", "--slurm-status-command", "squeue",
            "--slurm-init-seconds-before-status-checks", "3",
            "--seconds-between-status-checks", "3",
            "--default-resources", "slurm_account=any", "slurm_partition=gpu", *sys.argv[1:],
        ],
        check=True,
    )  # fmt: skip
    answer = [Path("out", f"{number}.txt").read_text() for number in range(4)]
    Path("answer.json").write_text(json.dumps([*answer, Path("sum.txt").read_text()]))
