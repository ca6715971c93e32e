"""Programs of others that call sbatch, with csub in its place."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from .conftest import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.long]


def require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (pip install -e '.[clients]')")


@pytest.fixture
def client(user: CsubUser) -> CsubUser:
    """A user whose sbatch is csub."""
    folder = user.home / "instead"
    folder.mkdir()
    path = user.environment["PATH"]
    (folder / "sbatch").write_text(f'#!/bin/sh\nPATH="{path}"\nexec csub "$@"\n')
    (folder / "sbatch").chmod(0o755)
    user.extra["PATH"] = f"{folder}:{path}"
    return user


def run_python(user: CsubUser, text: str) -> str:
    path = user.home / "client.py"
    path.write_text(text)
    return user.run([sys.executable, str(path)], timeout_s=240).stdout


SUBMITIT = """
import json, os, pathlib, subprocess, time
import submitit

def work(number):
    pathlib.Path(f"began.{number}").touch()
    while not os.path.exists("go"):
        time.sleep(0.1)
    return number * number

if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(
        timeout_min=5, slurm_gres="gpu:1", slurm_array_parallelism=8, slurm_mem="200M",
    )
    jobs = executor.map_array(work, range(4))
    for number in range(4):
        while not os.path.exists(f"began.{number}"):
            time.sleep(0.1)
    # Slurm knows no such task, and ends no other one.
    jobs[1].cancel(check=False)
    subprocess.run(["csub", "cancel", jobs[2].job_id], check=True)
    pathlib.Path("go").touch()
    results = [jobs[number].result() for number in (0, 1, 3)]
    pathlib.Path("answer").write_text(json.dumps([[job.job_id for job in jobs], results]))
"""


def test_submitit_maps_an_array_and_one_task_of_it_is_cancelled(client: CsubUser) -> None:
    require("submitit")
    run_python(client, SUBMITIT)
    ids, results = json.loads(client.output("answer"))
    job_id = ids[0].partition("_")[0]
    assert ids == [f"{job_id}_{number}" for number in range(4)]
    assert results == [0, 1, 9]
    states = {number: row["state"] for number, row in client.finish(job_id).items()}
    assert states == {0: "COMPLETED", 1: "COMPLETED", 2: "CANCELLED", 3: "COMPLETED"}


SIMPLE_SLURM = """
from simple_slurm import Slurm

first = Slurm(array=range(0, 4), gres="gpu:1", time="5", job_name="prep", mem="200M")
prepared = first.sbatch("touch done.$SLURM_ARRAY_TASK_ID", shell="/bin/bash")
second = Slurm(gres="gpu:1", time="5", dependency=dict(afterok=prepared))
print(prepared, second.sbatch("ls done.*", shell="/bin/bash"))
"""


def test_simple_slurm_submits_an_array_and_what_waits_for_it(client: CsubUser) -> None:
    require("simple_slurm")
    first, second = run_python(client, SIMPLE_SLURM).split()[-2:]
    assert {row["name"] for row in client.finish(first).values()} == {"prep"}
    assert client.finish(second)[1]["state"] == "COMPLETED"
    shown = Path(client.home, f"slurm-{second}.out").read_text().split()
    assert shown == [f"done.{number}" for number in range(4)]
