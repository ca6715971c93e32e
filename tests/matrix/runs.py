"""Running the tests in the roots side by side, and telling how they ended."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .releases import LEFT_OUT, WITHOUT
from .roots import CHECKOUT, Root, build_entry_argv

# The last line that pytest prints, with or without its frame of equal signs.
CLOSING = re.compile(r"^(=+ )?\d+ (passed|failed|skipped|error|deselected|warning|xfailed)\b.* in ")
PYTHON = "/opt/csub/bin/python"
# The checkout cannot be written there.
CACHE = ("-o", "cache_dir=/tmp/pytest")
# Most tests wait for Slurm. A file stays together, for its tests share what it set up.
WORKERS = "-n 2 --dist loadfile --no-loadscope-reorder"
_POLL_S = 0.5


@dataclass
class Run:
    """The tests in one root.

    Args:
        root: Which root.
        process: What runs there.
        started: When, in seconds of the monotonic clock.
        status: Exit status once it has ended.
        duration_s: How long it took then.
    """

    root: Root
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    status: int | None = None
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether tests ran and all passed."""
        closing = find_closing_line(self.read())
        return self.status == 0 and " passed" in closing

    def read(self) -> str:
        """What pytest printed up to now."""
        return self.root.output.read_text(errors="replace")


def choose_tests(*, all_of_them: bool, checkout: Path = CHECKOUT) -> list[str]:
    """pytest's words for the main paths on a release, or for all that can run there."""
    folders = {test.parent.name for test in (checkout / "tests").glob("*/test_*.py")}
    words = [f"tests/{name}" for name in sorted(folders - set(LEFT_OUT))]
    if all_of_them:
        return ["-m", WITHOUT, *words]
    return ["-m", f"slurm and smoke and {WITHOUT}", *words]


def start_run(
    root: Root, privilege: Sequence[str], words: Sequence[str], *, all_of_them: bool
) -> Run:
    """Start pytest in a root with these words, on what says something where they name no test."""
    if any(word.startswith("tests") for word in words):
        tests = ["-m", WITHOUT]
    else:
        tests = choose_tests(all_of_them=all_of_them)
    command = [PYTHON, "-m", "tests.again", f"--along={WORKERS}", *CACHE, *tests, *words]
    with root.output.open("wb") as file:
        process = subprocess.Popen(
            build_entry_argv(privilege, root, "ro", command),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            # The terminal's interrupt is for this program, which then lets go of the input.
            start_new_session=True,
        )
    return Run(root, process)


def wait_for_runs(runs: Sequence[Run], limit_s: float) -> None:
    """Wait until all have ended.

    Raises:
        TimeoutError: They did not within `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        for run in runs:
            if run.status is None and run.process.poll() is not None:
                run.status = run.process.returncode
                run.duration_s = time.monotonic() - run.started
        if all(run.status is not None for run in runs):
            return
        if time.monotonic() > deadline:
            late = ", ".join(run.root.release.slurm for run in runs if run.status is None)
            raise TimeoutError(f"the tests on Slurm {late} did not end within {limit_s:g} s")
        time.sleep(_POLL_S)


def stop_runs(runs: Sequence[Run]) -> None:
    """End what still runs: losing its input interrupts it, and in the end kills it."""
    for run in runs:
        if run.process.stdin is not None:
            run.process.stdin.close()
    for run in runs:
        run.process.wait()


def find_closing_line(output: str) -> str:
    """pytest's closing line, or the last line where pytest came to none."""
    lines = [line for line in output.splitlines() if line.strip()]
    closing = [line for line in lines if CLOSING.match(line)]
    return (closing or lines or ["it printed nothing"])[-1]


def find_failures(output: str) -> str:
    """What pytest says about failures and errors, or all where it says nothing of the kind."""
    found = re.search(r"^=+ (FAILURES|ERRORS) =+$", output, re.MULTILINE)
    return output[found.start() :] if found else output


def render_run(run: Run, versions: str) -> str:
    """What is told of a run: its failures if it has any, then pytest's closing line."""
    output = run.read()
    told = f"matrix: {versions}: {run.duration_s:.0f} s, all of it in {run.root.output}"
    if run.passed:
        return f"{told}\n{find_closing_line(output)}"
    failures = find_failures(output).rstrip("\n")
    closing = find_closing_line(output)
    if not failures.endswith(closing):
        failures = f"{failures}\n{closing}"
    return f"{told}\n{failures}"
