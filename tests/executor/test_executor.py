"""The Executor as programs use it: results, exceptions, states, and what csub shows of its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .conftest import list_slurm_jobs

Run = Callable[..., Any]


def test_a_call_gives_its_result(run_python: Run) -> None:
    found = run_python("""
        executor = Executor("calls", gres="gpu:1", time=10)
        job = executor.submit(lambda a, b: a + b, 5, b=7)
        early = job.job_id
        answer([job.result(timeout=60), early, str(job.member), job.done(), job.state])
    """)
    result, job_id, member, done, state = found
    assert (result, done, state) == (12, True, "COMPLETED")
    assert member == f"{job_id}/1"


def test_map_is_one_submission_that_packs_itself(run_python: Run, slurm: FakeSlurm) -> None:
    found = run_python("""
        def square(number):
            return number**2

        with Executor("calls", gres="gpu:1", time=5, share="timeslice", degree=4) as executor:
            results = list(executor.map(square, range(8)))
            answer([results, [job.job_id for job in executor.jobs], str(executor.progress())])
    """)
    results, ids, progress = found
    assert results == [number**2 for number in range(8)]
    job_id = ids[0].partition("_")[0]
    assert ids == [f"{job_id}_{number}" for number in range(8)]
    # Two packs of four, elements of one array.
    assert len(list_slurm_jobs(slurm)) == 2
    assert progress == "8 of 8 done"


def test_an_exception_comes_back_with_the_traceback_of_its_member(run_python: Run) -> None:
    found = run_python("""
        class Broken(Exception):
            pass

        def fail(number):
            raise Broken(f"no {number}")

        job = Executor("calls", gres="gpu:1", time=5).submit(fail, 3)
        error = job.exception(timeout=60)
        try:
            job.result()
        except Broken as caught:
            answer([str(caught), str(error.__cause__), job.stdout()])
    """)
    text, cause, output = found
    assert text == "no 3"
    assert "in fail\nBroken: no 3\n" in cause
    assert "run_call.py" not in cause
    assert output.rstrip().endswith("Broken: no 3")


def test_a_member_that_dies_says_how(run_python: Run) -> None:
    found = run_python("""
        import os, sys, signal

        def die():
            print("the last thing it said", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        job = Executor("calls", gres="gpu:1", time=5).submit(die)
        error = job.exception(timeout=60)
        answer([type(error).__name__, error.state, error.last_line, str(error), job.job_id])
    """)
    kind, state, line, text, job_id = found
    assert (kind, state, line) == ("MemberFailed", "FAILED", "the last thing it said")
    assert text.startswith(f"{job_id}/1 FAILED")
    assert f"csub explain {job_id}/1" in text


def test_an_exit_is_an_exception_and_the_members_own_exit_status(
    run_python: Run, user: CsubUser
) -> None:
    found = run_python("""
        import sys

        job = Executor("calls", gres="gpu:1", time=5).submit(sys.exit, 3)
        error = job.exception(timeout=60)
        answer([type(error).__name__, str(error), job.job_id])
    """)
    assert found[:2] == ["MemberFailed", f"{found[2]}/1: SystemExit: 3"]
    assert user.finish(found[2])[1]["exit_code"]["code"] == 3


def test_csub_tells_the_calls_of_an_array_apart(run_python: Run, user: CsubUser) -> None:
    job_id = run_python("""
        def train(lr, *, bs):
            return lr * bs

        executor = Executor("calls", gres="gpu:1", time=5)
        with executor.batch():
            jobs = [executor.submit(train, lr, bs=32) for lr in (0.1, 0.2)]
        executor.wait()
        answer(jobs[0].job_id.partition("_")[0])
    """)
    rows = user.finish(job_id)
    assert {row["name"] for row in rows.values()} == {"train"}
    words = {number: row["arguments"] for number, row in rows.items()}
    assert words == {0: ["lr=0.1", "bs=32"], 1: ["lr=0.2", "bs=32"]}
    assert rows[1]["parameters"] == {"lr": "0.2", "bs": "32"}
    found = json.loads(user.csub("history", "--json", "--where", "lr=0.1").stdout)
    assert [row["member"] for row in found] == [f"{job_id}/0"]


def test_a_batch_that_fails_submits_nothing(run_python: Run, slurm: FakeSlurm) -> None:
    found = run_python("""
        executor = Executor("calls", gres="gpu:1", time=5)
        try:
            with executor.batch():
                job = executor.submit(print, 1)
                try:
                    job.job_id
                except Exception as problem:
                    early = str(problem)
                raise KeyError("x")
        except KeyError:
            answer([early, job.cancelled(), Path("calls").exists()])
    """)
    assert found == ["this job is submitted where its batch() ends", True, False]
    assert list_slurm_jobs(slurm) == []


def test_scripts_are_jobs_too(run_python: Run, user: CsubUser) -> None:
    user.script("train.sh", 'echo "lr $1"; exit ${2:-0}', directives="#SBATCH --gres=gpu:1 -t 5")
    found = run_python("""
        good, bad = submit("train.sh", 0.1), submit("train.sh", 0.2, 3, job_name="bad")
        answer([good.result(60), good.stdout(), str(bad.exception(60)), bad.exception().state])
    """)
    result, output, text, state = found
    assert (result, output, state) == (0, "lr 0.1\n", "FAILED")
    assert "FAILED with exit status 3" in text
    assert "its last line: lr 0.2" in text


def test_jobs_are_found_again(run_python: Run) -> None:
    found = run_python("""
        jobs = Executor("calls", gres="gpu:1", time=5).map_array(pow, [2, 3], [3, 2])
        again = [Job(job.job_id, folder="calls") for job in jobs]
        by_member = Job(str(jobs[1].member), "calls")
        answer([[job.result(60) for job in again], by_member.result(60), by_member.job_id])
    """)
    assert found[:2] == [[8, 9], 9]
    assert found[2].endswith("_1")


def test_jobs_are_awaited(run_python: Run) -> None:
    found = run_python("""
        import asyncio

        async def main():
            jobs = Executor("calls", gres="gpu:1", time=5).map_array(abs, [-1, -2])
            return [await jobs[0], *await asyncio.gather(jobs[1])]

        answer(asyncio.run(main()))
    """)
    assert found == [1, 2]


def test_a_job_that_runs_is_cancelled(run_python: Run, user: CsubUser) -> None:
    found = run_python("""
        import time

        jobs = Executor("calls", gres="gpu:1", time=5, degree=2).map_array(time.sleep, [300, 0])
        while jobs[0].state != "RUNNING":
            time.sleep(0.1)
        running = jobs[0].running()
        first = jobs[0].cancel()
        answer([running, first, jobs[0].cancel(), jobs[0].cancelled(), jobs[1].result(60),
                jobs[0].job_id.partition("_")[0]])
    """)
    assert found[:5] == [True, True, False, True, None]
    states = {number: row["state"] for number, row in user.finish(found[5]).items()}
    assert states == {0: "CANCELLED", 1: "COMPLETED"}


def test_a_job_that_is_cancelled_on_the_command_line_says_so(run_python: Run) -> None:
    found = run_python("""
        import subprocess, time

        job = Executor("calls", gres="gpu:1", time=5).submit(time.sleep, 300)
        subprocess.run(["csub", "cancel", str(job.member)], check=True)
        answer([job.exception(60).state, str(job.exception())])
    """)
    assert found[0] == "CANCELLED"
    assert "CANCELLED" in found[1]


def test_functions_of_a_module_next_to_the_program_are_found(
    run_python: Run, user: CsubUser
) -> None:
    (user.home / "model.py").write_text("def train(x):\n    return x + 1\n")
    found = run_python("""
        import os
        from model import train

        os.makedirs("elsewhere")
        executor = Executor("calls", gres="gpu:1", time=5)
        os.chdir("elsewhere")
        result = executor.submit(train, 1).result(60)
        os.chdir("..")
        answer(result)
    """)
    assert found == 2


def test_waiting_tells_who_has_ended(run_python: Run, slurm: FakeSlurm) -> None:
    slurm.pause()
    found = run_python("""
        executor = Executor("calls", gres="gpu:1", time=5)
        jobs = executor.map_array(abs, [1, 2])
        done, not_done = executor.wait(timeout=0.2)
        before = [len(done), len(not_done), str(executor.progress()), executor.jobs[0].state]
        executor.shutdown(cancel_futures=True)
        try:
            executor.submit(abs, 3)
        except RuntimeError as problem:
            answer([before, str(problem), str(executor.progress())])
    """)
    before, problem, after = found
    assert before == [0, 2, "0 of 2 done, 2 pending", "PENDING"]
    assert problem == "cannot schedule new futures after shutdown"
    assert after == "2 of 2 done, 2 cancelled"


def test_calls_run_without_slurm_too(run_python: Run, slurm: FakeSlurm) -> None:
    found = run_python("""
        jobs = Executor("calls", local=True, time=5).map_array(abs, [-1, -2])
        answer([[job.result(60) for job in jobs], jobs[0].job_id])
    """)
    assert found == [[1, 2], "L1_0"]
    assert list_slurm_jobs(slurm) == []


def test_a_call_that_was_tried_again_has_its_result_under_its_first_id(
    run_python: Run, user: CsubUser
) -> None:
    job_id, states = run_python("""
        def find(number):
            return number * int(Path("fixed").read_text())

        jobs = Executor("calls", gres="gpu:1", time=5).map_array(find, [1, 2])
        errors = [type(job.exception(timeout=60)).__name__ for job in jobs]
        answer([jobs[0].member.job, errors])
    """)
    assert states == ["FileNotFoundError", "FileNotFoundError"]
    (user.home / "fixed").write_text("21")
    user.csub("retry", job_id, "--wait")
    found = run_python(f"""
        answer([Job(f"{job_id}_{{n}}", folder="calls").result(timeout=60) for n in range(2)])
    """)
    assert found == [21, 42]
