"""The two-line API, with and without csub, in every Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .counted_programs import ROOT, build_environment, run, run_python
from .test_site import find_pythons

THREE = "from slurm_colloc import progress\nfor _ in range(3): progress.step(samples=128)\n"


def find_modern_pythons() -> list[str]:
    """Those for which it is written."""
    found = []
    for python in find_pythons():
        code = "import sys; print(int(sys.version_info >= (3, 8)))"
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if told.stdout == "1\n":
            found.append(python)
    return found


@pytest.mark.parametrize("python", find_modern_pythons())
def test_it_counts_in_a_python_that_does_not_have_slurm_colloc(tmp_path: Path, python: str) -> None:
    ended = run([python, "-c", THREE], tmp_path, cwd=tmp_path)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert ended.progress is not None
    counted = ended.progress
    assert (counted.steps, counted.samples, counted.source) == (3, 384, "api")
    assert counted.first_step_s is not None
    assert counted.last_step_s is not None
    assert counted.first_step_s <= counted.last_step_s
    assert counted.processes[0].finished


@pytest.mark.parametrize("python", find_modern_pythons())
def test_without_csub_it_does_nothing(tmp_path: Path, python: str) -> None:
    environment = {**build_environment(tmp_path), "PYTHONPATH": str(ROOT)}
    del environment["SLURM_COLLOC_PROGRESS"]
    code = f"{THREE}progress.skip()\nprogress.step('x')\nprogress.step(samples=object())"
    ended = run([python, "-B", "-c", code], tmp_path, environment=environment)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_it_counts_where_the_injected_file_was_not_read(tmp_path: Path) -> None:
    environment = {**build_environment(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = run([sys.executable, "-c", THREE], tmp_path, environment=environment)
    assert ended.progress is not None
    assert ended.progress.steps == 3


def test_its_counts_replace_those_of_the_hooks(tmp_path: Path) -> None:
    code = (
        "from slurm_colloc import progress\n"
        "tally = progress._TALLY\n"
        "for _ in range(5):\n"
        "    tally.count_batch(1, 8, 0, 10)\n"
        "    tally.count_step(7)\n"
        "    progress.step()\n"
        "progress.skip(2)\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.progress is not None
    counted = ended.progress
    assert (counted.steps, counted.skipped, counted.source) == (5, 2, "api")
    # Samples are the loader's until the program gives its own.
    assert (counted.samples, counted.batches) == (40, 5)
    ended = run_python(f"{code}progress.step(samples=3)", tmp_path)
    assert ended.progress is not None
    assert sorted(p.samples for p in ended.progress.processes) == [3, 40]


def test_threads_lose_no_step(tmp_path: Path) -> None:
    code = (
        "import sys, threading\n"
        "from slurm_colloc import progress\n"
        "sys.setswitchinterval(1e-6)\n"
        "def work():\n"
        "    for _ in range(5000): progress.step(samples=2)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.progress is not None
    assert (ended.progress.steps, ended.progress.samples) == (20000, 40000)


def test_a_signal_handler_may_count_too(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "from slurm_colloc import progress\n"
        "signal.signal(signal.SIGALRM, lambda *_: progress.skip())\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "for _ in range(200000): progress.step()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.progress is not None
    assert ended.progress.steps == 200000
    assert ended.progress.skipped > 0
