"""Run pytest, and once more and alone what failed along with others.

    python -m tests.again [--along=WORDS] [PYTEST...]

Most tests wait for daemons and processes, and several of them at a time can keep a small machine so
busy that one outlasts its patience. Such a test gets a second look when the others are done, and is
named. Whatever fails then has failed.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

MOST = 8
"""With more failures than this it was not the machine."""


def needs_gpu(name: str, keywords: Container[str]) -> bool:
    """Whether a test has the mark `gpu`; folders are keywords, too, and one is called so."""
    folder, _, file = name.partition("::")[0].rpartition("/")
    return "gpu" in keywords and (not folder.endswith("/gpu") or file.startswith("test_gpu_"))


class Failures:
    """A plugin that notes what failed.

    Attributes:
        by_name: For each failed test, whether it needs no GPU.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, in whatever part of a test."""
        if report.failed:
            self.by_name[report.nodeid] = not needs_gpu(report.nodeid, report.keywords)

    @property
    def deserve_a_second_look(self) -> bool:
        """There are few, and all of them may depend on how busy the machine is."""
        return 0 < len(self.by_name) <= MOST and all(self.by_name.values())


def compile_all(words: Sequence[str]) -> None:
    """Compile what all workers, and all programs that they start, would else compile each anew.

    pip does it for those who install the package, but not in a checkout. pytest changes the tests'
    asserts first, which takes most of the time in which a worker collects them.

    Args:
        words: pytest's.
    """
    compileall.compile_dir("slurm_colloc", quiet=2)
    if any(Path("tests").rglob("*-pytest-*.pyc")):
        return
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    chosen = [word for word in words if not word.startswith("--cov")]
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", *chosen],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def main(words: list[str]) -> int:
    """Run once, and again where that may help; pytest's exit status of the last run."""
    along: list[str] = []
    if words and words[0].startswith("--along="):
        along = words.pop(0).partition("=")[2].split()
        compile_all(words)
    failures = Failures()
    # In this process, so that who interrupts it interrupts pytest.
    status = pytest.main(["--cache-clear", *along, *words], plugins=[failures])
    if status == pytest.ExitCode.TESTS_FAILED and failures.deserve_a_second_look:
        look_again(failures.by_name, words)
    return int(status)


def look_again(names: Iterable[str], words: list[str]) -> NoReturn:
    """Become the pytest that runs only what has failed."""
    print("A second look, alone, at what failed along with others:")
    for name in names:
        print(f"  {name}")
    sys.stdout.flush()
    argv = [sys.executable, "-m", "pytest", *words, "--last-failed"]
    os.execv(argv[0], [*argv, "--last-failed-no-failures=none"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
