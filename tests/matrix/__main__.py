"""Tests on other releases of Slurm: `python -m tests.matrix [--all] [--release R]... [PYTEST...]`.

Each release comes with its Python in a root of its own below .matrix, made by debootstrap once.
All other words are pytest's, and replace the folders of tests.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from .releases import RELEASES
from .roots import (
    CACHE,
    MatrixImpossible,
    Root,
    build_entry_argv,
    find_privilege,
    find_root,
    make_root,
    prepare_python,
)
from .runs import Run, render_run, start_run, stop_runs, wait_for_runs

_LIMIT_S = 4500.0


def say(text: str) -> None:
    """Tell at once how far it has come."""
    print(f"matrix: {text}", flush=True)


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two runs would make the same roots and write the same files."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run in this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(root: Root, privilege: Sequence[str]) -> str:
    """Make a root ready, and say which versions it holds."""
    release = root.release
    if make_root(root, privilege):
        say(f"made {root.tree.relative_to(CACHE.parent)} of Debian {release.suite}")
    prepare_python(root, privilege)
    look = ["sh", "-c", "slurmctld -V; /opt/csub/bin/python -V"]
    with subprocess.Popen(
        build_entry_argv(privilege, root, "ro", look),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as asked:
        # Its input must stay open while it works: see lifeline.py.
        assert asked.stdout is not None
        assert asked.stderr is not None
        words = asked.stdout.read().split()
        complaint = asked.stderr.read().strip()
    if asked.returncode or len(words) != 4:
        raise MatrixImpossible(f"{root.tree} cannot be entered: {complaint}")
    slurm, python = words[1], words[3]
    if not slurm.startswith(release.slurm) or not python.startswith(release.python):
        say(
            f"Debian {release.suite} has other versions than Slurm {release.slurm} and "
            f"Python {release.python} by now"
        )
    return f"Slurm {slurm}, Python {python}"


def run_matrix(
    roots: Sequence[Root], words: Sequence[str], *, all_of_them: bool, limit_s: float
) -> bool:
    """Make the roots, run the tests in all of them and tell; whether all passed."""
    privilege = find_privilege()
    with ThreadPoolExecutor() as pool:
        versions = list(pool.map(lambda root: prepare(root, privilege), roots))
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    runs: list[Run] = []
    try:
        for root, version in zip(roots, versions, strict=True):
            say(f"running the tests on {version}")
            runs.append(start_run(root, privilege, words, all_of_them=all_of_them))
        wait_for_runs(runs, limit_s)
    finally:
        stop_runs(runs)
    # Failing ones come last, so that the closing line of one of them is the last line.
    told = sorted(zip(runs, versions, strict=True), key=lambda pair: not pair[0].passed)
    for run, version in told:
        print(render_run(run, version), flush=True)
    return all(run.passed for run in runs)


def interrupt(*_: object) -> NoReturn:
    """End the runs, then this program."""
    raise KeyboardInterrupt


def leave(*_: object) -> NoReturn:
    """End at once: what is being made loses its input, and is made anew the next time."""
    os._exit(130)


def main() -> int:
    """Read the command line and run."""
    known = [release.slurm for release in RELEASES]
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--release", action="append", choices=known, help="only this one; may be repeated"
    )
    parser.add_argument(
        "--all", action="store_true", help="all that can run there, not the main paths alone"
    )
    # What is not known here is pytest's, in the order given.
    chosen, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    roots = [
        find_root(release)
        for release in RELEASES
        if chosen.release is None or release.slurm in chosen.release
    ]
    limit_s = float(os.environ.get("CSUB_MATRIX_LIMIT_S", _LIMIT_S))
    try:
        with only_one_at_a_time():
            passed = run_matrix(roots, words, all_of_them=chosen.all, limit_s=limit_s)
            return 0 if passed else 1
    except MatrixImpossible as problem:
        if os.environ.get("CSUB_TEST_WITHOUT_MATRIX") == "1":
            say(f"left out, as CSUB_TEST_WITHOUT_MATRIX=1 asks: {problem}")
            return 0
        print(f"matrix: {problem}", file=sys.stderr)
        print("matrix: CSUB_TEST_WITHOUT_MATRIX=1 leaves it out.", file=sys.stderr)
        return 1
    except TimeoutError as problem:
        print(f"matrix: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("matrix: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
