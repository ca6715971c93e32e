"""parsl: two blocks are jobs, and tasks run in them; its provider also submits jobs by itself, of
which one fails, one is cancelled, one waits for another."""

from __future__ import annotations

import json
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def square(number: int) -> int:
    return number * number


def make_provider(*options: str) -> SlurmProvider:
    return SlurmProvider(
        partition=None, nodes_per_block=1, init_blocks=2, max_blocks=2, min_blocks=0,
        walltime="00:05:00", exclusive=False, cores_per_node=1, launcher=SimpleLauncher(),
        scheduler_options="\n".join(
            f"#SBATCH {option}" for option in ("--gres=gpu:1", "--mem=300M", *options)
        ),
    )  # fmt: skip


def try_provider() -> dict[str, str]:
    """Four jobs of a provider at the same time; how each has ended."""
    here = Path.cwd()
    wait = f"until [ -e {here}/go ]; do sleep 0.1; done"
    provider = make_provider()
    provider.script_dir = str(here)
    ids = {
        "good": provider.submit(f"{wait}; sleep 2; touch {here}/good", 1, "good"),
        "bad": provider.submit(f"{wait}; exit 3", 1, "bad"),
        "long": provider.submit("sleep 300", 1, "long"),
    }
    after = make_provider(f"--dependency=afterok:{ids['good']}")
    after.script_dir = str(here)
    whose = dict.fromkeys(ids, provider) | {"after": after}
    ids["after"] = after.submit(f"test -e {here}/good", 1, "after")

    def read(name: str) -> str:
        [status] = whose[name].status([ids[name]])
        return status.state.name

    def wait_for(name: str, *states: str) -> str:
        while (state := read(name)) not in states:
            time.sleep(0.5)
        return state

    wait_for("long", "RUNNING")
    assert provider.cancel([ids["long"]]) == [True]
    Path("go").touch()
    return {name: wait_for(name, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT") for name in ids}


if __name__ == "__main__":
    provider = make_provider()
    executor = HighThroughputExecutor(
        label="workers", address="127.0.0.1", max_workers_per_node=1, provider=provider
    )
    with parsl.load(Config(executors=[executor], run_dir="runinfo")):
        answer = [future.result() for future in [square(number) for number in range(5)]]
    Path("answer.json").write_text(json.dumps([answer, try_provider()]))
