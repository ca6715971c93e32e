"""executorlib, which asks pysqa: functions that succeed, one that fails, one that is cancelled."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pysqa.wrapper.slurm
from executorlib import SlurmClusterExecutor
from pysqa import QueueAdapter

TEMPLATE = pysqa.wrapper.slurm.template.replace(
    "#SBATCH --partition={{partition}}",
    "#SBATCH --gres=gpu:1 --mem=300M\n#CSUB --join --share=timeslice",
)


def square(number: int) -> int:
    return number * number


def fail(number: int) -> float:
    return number / 0


def tell(future: object) -> object:
    try:
        return future.result(timeout=200)  # type: ignore[attr-defined]
    except ZeroDivisionError as error:
        return str(error)


if __name__ == "__main__":
    how = {"submission_template": TEMPLATE, "cores": 1}
    with SlurmClusterExecutor(cache_directory="cache", resource_dict=how) as executor:
        futures = [executor.submit(square, number) for number in range(3)]
        futures.append(executor.submit(fail, 1))
        results = [tell(future) for future in futures]
    adapter = QueueAdapter(queue_type="slurm")
    folder = Path("one").absolute()
    folder.mkdir()
    ids = [
        adapter.submit_job(
            command="until [ -e ../go ]; do sleep 0.1; done", working_directory=str(folder),
            job_name=name, run_time_max=300, submission_template=TEMPLATE, cores=1,
        )
        for name in ("task0", "task1")
    ]  # fmt: skip
    while [adapter.get_status_of_job(one) for one in ids] != ["running", "running"]:
        time.sleep(0.3)
    adapter.delete_job(ids[1])
    while adapter.get_status_of_job(ids[1]) is not None:
        time.sleep(0.3)
    left = adapter.get_status_of_job(ids[0])
    Path("go").touch()
    while adapter.get_status_of_job(ids[0]) is not None:
        time.sleep(0.3)
    Path("answer.json").write_text(json.dumps([results, left, len(set(ids))]))
