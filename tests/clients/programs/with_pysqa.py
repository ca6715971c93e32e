"""executorlib, which asks pysqa: functions, one of which fails; and pysqa with an array."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pysqa.wrapper.slurm
from executorlib import SlurmClusterExecutor
from pysqa import QueueAdapter

# Both write --get-user-env.
TEMPLATE = pysqa.wrapper.slurm.template.replace(
    "#SBATCH --partition={{partition}}", "#SBATCH --gres=gpu:1 --mem=300M"
)
ARRAY = TEMPLATE.replace("--mem=300M", "--mem=50M --array=0-3\n#CSUB --share=timeslice --degree=4")


def square(number: int) -> int:
    return number * number


def fail(number: int) -> float:
    return number / 0


def tell(future: object) -> object:
    try:
        return future.result(timeout=200)  # type: ignore[attr-defined]
    except ZeroDivisionError as error:
        return str(error)


def count(adapter: QueueAdapter) -> Counter[str]:
    """How many tasks of the array are in which state."""
    table = adapter.get_queue_status()
    rows = zip(table.jobname.tolist(), table.status.tolist(), strict=True)
    return Counter(status for name, status in rows if name.strip() == "sweep")


if __name__ == "__main__":
    how = {"submission_template": TEMPLATE, "cores": 1}
    with SlurmClusterExecutor(cache_directory="cache", resource_dict=how) as executor:
        futures = [executor.submit(square, number) for number in range(3)]
        futures.append(executor.submit(fail, 1))
        results = [tell(future) for future in futures]
    adapter = QueueAdapter(queue_type="slurm")
    folder = Path("sweep").absolute()
    folder.mkdir()
    job_id = adapter.submit_job(
        command='until [ -e go ]; do sleep 0.1; done; touch "done.$SLURM_ARRAY_TASK_ID"',
        working_directory=str(folder), job_name="sweep", run_time_max=300, cores=1,
        submission_template=ARRAY,
    )  # fmt: skip
    while count(adapter) != Counter(running=4):
        time.sleep(0.3)
    adapter.delete_job(f"{job_id}_3")
    while count(adapter) != Counter(running=3):
        time.sleep(0.3)
    (folder / "go").touch()
    while count(adapter):
        time.sleep(0.3)
    done = sorted(path.name for path in folder.glob("done.*"))
    Path("answer.json").write_text(json.dumps([results, done]))
