"""The Executor on a real Slurm: packs, results, and a callable that goes on after a signal."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

import pytest

from ..bed import CsubUser

pytestmark = pytest.mark.slurm


def run_program(user: CsubUser, text: str) -> Any:
    """What a program of the user's has written to answer.json."""
    (user.home / "program.py").write_text(textwrap.dedent(text))
    user.run([sys.executable, "-B", "program.py"])
    return json.loads((user.home / "answer.json").read_text())


@pytest.mark.smoke
def test_a_map_is_one_array_whose_members_share(user: CsubUser) -> None:
    results, error, job_id = run_program(
        user,
        """
        import json
        from pathlib import Path
        from slurm_colloc import Executor

        def train(lr):
            if lr == 3:
                raise ValueError(f"bad {lr}")
            return lr * 10

        executor = Executor("calls", gres="gpu:1", time=3, mem="300M", share="timeslice")
        jobs = executor.map_array(train, range(6))
        executor.wait()
        answer = [
            [job.result() for job in jobs if job.exception() is None],
            repr(jobs[3].exception()),
            jobs[0].job_id.partition("_")[0],
        ]
        Path("answer.json").write_text(json.dumps(answer))
        """,
    )
    assert results == [0, 10, 20, 40, 50]
    assert error == "ValueError('bad 3')"
    rows = user.finish(job_id)
    assert [rows[number]["state"] for number in (2, 3)] == ["COMPLETED", "FAILED"]
    assert len({row["slurm_job_id"] for row in rows.values()}) < len(rows)


def test_a_callable_goes_on_from_its_checkpoint(user: CsubUser) -> None:
    result, job_id = run_program(
        user,
        """
        import json, subprocess, time
        from pathlib import Path
        from slurm_colloc import submitit

        class Counting:
            def __call__(self, path):
                state = int(Path(path).read_text()) if Path(path).exists() else 0
                Path("began").touch()
                while state == 0:
                    time.sleep(0.1)
                return state

            def checkpoint(self, path):
                Path(path).write_text("7")
                return submitit.helpers.DelayedSubmission(Counting(), path)

        executor = submitit.AutoExecutor(folder="log_test")
        executor.update_parameters(timeout_min=3, slurm_requeue=True)
        job = executor.submit(Counting(), "checkpoint")
        while not Path("began").exists():
            time.sleep(0.1)
        subprocess.run(["scancel", "--batch", "--signal=USR2", job.job_id], check=True)
        Path("answer.json").write_text(json.dumps([job.result(90), job.job_id]))
        """,
    )
    assert result == 7
    assert user.finish(job_id)[1]["starts"] == 2


def test_another_user_gets_neither_calls_nor_results(user: CsubUser, other_user: CsubUser) -> None:
    job_id = run_program(
        user,
        """
        import json
        from pathlib import Path
        from slurm_colloc import Executor

        job = Executor("calls", time=3, mem="300M").submit(abs, -1)
        job.result(90)
        Path("answer.json").write_text(json.dumps(job.job_id))
        """,
    )
    user.home.chmod(0o755)
    said = run_program(
        other_user,
        f"""
        import json
        from pathlib import Path
        from slurm_colloc import Job

        try:
            Job({job_id!r}, folder={str(user.home / "calls")!r})
        except Exception as problem:
            answer = [type(problem).__name__, str(problem)]
        Path("answer.json").write_text(json.dumps(answer))
        """,
    )
    assert said[0] == "NotFound"
    assert f"holds no call of job {job_id}" in said[1]
