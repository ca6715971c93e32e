"""The examples of submitit's documentation, with `from slurm_colloc import submitit` instead.

docs/examples.md, docs/checkpointing.md and README.md of submitit 1.5; times are shorter, and jobs
of several tasks are refused (docs/differences.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.submitit.auto_executor import translate_options

Run = Callable[..., Any]

HEAD = """\
import json
from pathlib import Path
from slurm_colloc import submitit

def answer(value):
    Path("answer.json").write_text(json.dumps(value))

"""


def test_the_first_example(run_python: Run) -> None:
    found = run_python(
        """
        def add(a, b):
            return a + b

        executor = submitit.AutoExecutor(folder="log_test/%j")
        executor.update_parameters(timeout_min=1, slurm_gres="gpu:1")
        job = executor.submit(add, 5, 7)
        print(job.job_id)
        output = job.result()
        assert output == 12
        answer([output, job.stdout(), job.stderr(), Path("log_test").is_dir()])
        """,
        head=HEAD,
    )
    assert found == [12, "", "", True]


def test_arrays_and_batches(run_python: Run) -> None:
    found = run_python(
        """
        from operator import add

        a, b = [1, 2, 3, 4], [10, 20, 30, 40]
        executor = submitit.AutoExecutor(folder="log_test")
        executor.update_parameters(slurm_array_parallelism=2, timeout_min=1)
        jobs = executor.map_array(add, a, b)
        with executor.batch():
            more = [executor.submit(add, one, b=two) if False else executor.submit(add, one, two)
                    for one, two in zip(a, b)]
        answer([[job.result() for job in jobs], [job.result() for job in more],
                [job.job_id.partition("_")[2] for job in more]])
        """,
        head=HEAD,
    )
    assert found == [[11, 22, 33, 44], [11, 22, 33, 44], ["0", "1", "2", "3"]]


def test_concurrent_jobs_and_asyncio(run_python: Run) -> None:
    found = run_python(
        """
        import asyncio
        import time

        def slow_multiplication(x, y):
            time.sleep(x * y / 10)
            return x * y

        executor = submitit.AutoExecutor(folder="log_test")
        executor.update_parameters(timeout_min=1)

        async def main():
            job = executor.submit(slow_multiplication, 3, 2)
            first = await job.async_result()
            jobs = [executor.submit(slow_multiplication, k, 1) for k in range(1, 3)]
            later = [await aws for aws in asyncio.as_completed([j.async_result() for j in jobs])]
            return [first, sorted(later), sum(job.done() for job in jobs)]

        one = asyncio.run(main())
        jobs = executor.map_array(slow_multiplication, [1, 2], [1, 1])
        two = sorted(job.result() for job in submitit.helpers.as_completed(jobs))
        answer([one, two])
        """,
        head=HEAD,
    )
    assert found == [[6, [1, 2], 2], [1, 2]]


def test_errors(run_python: Run) -> None:
    found = run_python(
        """
        from operator import truediv

        executor = submitit.AutoExecutor(folder="log_test")
        executor.update_parameters(timeout_min=1)
        job = executor.submit(truediv, 1, 0)
        try:
            job.result()
        except ZeroDivisionError:
            answer([job.stderr(), job.get_logs_path("stderr").exists()])
        """,
        head=HEAD,
    )
    assert found[0].rstrip().endswith("ZeroDivisionError: division by zero")
    assert found[1] is True


def test_commands_and_the_job_environment(run_python: Run) -> None:
    found = run_python(
        """
        def look():
            env = submitit.JobEnvironment()
            return [env.job_id, env.num_tasks, env.global_rank]

        function = submitit.helpers.CommandFunction(["echo", "python"])
        executor = submitit.AutoExecutor(folder="log_test")
        executor.update_parameters(timeout_min=1)
        job, seen = executor.submit(function, "3"), executor.submit(look)
        wrong = executor.submit(submitit.helpers.CommandFunction(["ls", "/nowhere"]))
        answer([function(), job.result(), seen.result(), seen.job_id, str(wrong.exception())])
        """,
        head=HEAD,
    )
    assert found[:2] == ["python", "python 3"]
    assert found[2] == [found[3], 1, 0]
    assert "ls has ended with exit status 2: ls: cannot access '/nowhere'" in found[4]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks_per_node": 3}, "tasks_per_node=3: a job of several tasks has no single result"),
        ({"gpu": 3}, "gpu=3 is not an option of submitit's: slurm_gpu hands it to csub"),
    ],
)
def test_what_cannot_be_done_is_refused(options: Any, sentence: str) -> None:
    with pytest.raises(UsageProblem, match=sentence):
        translate_options(options)


def test_options_are_translated() -> None:
    assert translate_options(
        {"timeout_min": 4, "slurm_partition": "dev", "mem_gb": 1.5, "gpus_per_node": 1,
         "name": "n", "slurm_mem": "300M", "slurm_time": 9, "local_x": 1, "slurm_use_srun": False,
         "slurm_additional_parameters": {"gpu_mem": "4G"}, "slurm_setup": ["a"],
         "slurm_array_parallelism": 2, "tasks_per_node": 1}
    ) == {
        "time": 9, "partition": "dev", "mem": "300M", "gres": "gpu:1", "job_name": "n",
        "gpu_mem": "4G", "setup": ["a"], "array_parallelism": 2,
    }  # fmt: skip
