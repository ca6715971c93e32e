"""parsl: two blocks are jobs, and tasks run in them."""

from __future__ import annotations

import json
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def square(number: int) -> int:
    return number * number


if __name__ == "__main__":
    provider = SlurmProvider(
        partition=None, nodes_per_block=1, init_blocks=2, max_blocks=2, min_blocks=0,
        walltime="00:05:00", exclusive=False, cores_per_node=1, launcher=SimpleLauncher(),
        scheduler_options="#SBATCH --gres=gpu:1\n#SBATCH --mem=300M",
    )  # fmt: skip
    executor = HighThroughputExecutor(
        label="workers", address="127.0.0.1", max_workers_per_node=1, provider=provider
    )
    with parsl.load(Config(executors=[executor], run_dir="runinfo")):
        answer = [future.result() for future in [square(number) for number in range(5)]]
    Path("answer.json").write_text(json.dumps(answer))
