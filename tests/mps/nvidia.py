"""NVIDIA's own control daemon 550, which runs without a GPU, from Debian's non-free component.

`python -m tests.mps.nvidia` fetches it into the checkout's cache, once. It is not vendored: apt
takes it from the archive that the machine's own apt uses, and Debian's keys check it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..matrix.roots import find_mirror

CACHE = Path(__file__).resolve().parents[2] / ".mps"
TREE = CACHE / "tree"
PROGRAM = TREE / "usr/bin/nvidia-cuda-mps-control"
SUITE = "trixie"
PACKAGE = "nvidia-cuda-mps"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PATIENCE_S = 180


class Unavailable(Exception):
    """It cannot be had here; the message says why."""


def find_control() -> Path | None:
    """The program, where it has been fetched."""
    return PROGRAM if os.access(PROGRAM, os.X_OK) else None


def read_version() -> str:
    """The fetched package's version."""
    return (TREE / "version").read_text()


def fetch() -> None:
    """Fetch it, unless it is there.

    Raises:
        Unavailable: No apt, no keys, no network, or another architecture.
    """
    if find_control() is not None:
        return
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"this system has no {program}")
    if not KEYS.exists():
        raise Unavailable("Debian's keys are missing (package debian-archive-keyring)")
    mirror = find_mirror()
    if mirror is None:
        raise Unavailable("apt knows no Debian archive; CSUB_MATRIX_MIRROR can name one")
    work = CACHE / "work"
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial"):
        (work / folder).mkdir(parents=True)
    try:
        options = write_sources(work, mirror)
        _run(["apt-get", *options, "-q", "update"], work)
        _run(["apt-get", *options, "-q", "download", PACKAGE], work)
        found = sorted(work.glob(f"{PACKAGE}_*.deb"))
        if not found:
            raise Unavailable(f"apt-get brought no {PACKAGE}")
        shutil.rmtree(TREE, ignore_errors=True)
        _run(["dpkg-deb", "-x", str(found[-1]), str(work / "tree")], work)
        (work / "tree/version").write_text(found[-1].name.split("_")[1])
        (work / "tree").rename(TREE)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if find_control() is None:
        raise Unavailable(f"{PACKAGE} holds no {PROGRAM.name}")


def write_sources(work: Path, mirror: str) -> list[str]:
    """Write a list of sources of our own; apt's options that make it the only one."""
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={KEYS}] {mirror} {SUITE} non-free\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": os.devnull,
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work,
        "Dir::Cache::archives": work / "archives",
        "Acquire::Languages": "none",
        "Acquire::Retries": 1,
        "Acquire::http::Timeout": 20,
        # The checkout may be closed to apt's own user.
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _run(argv: Sequence[str], work: Path) -> None:
    try:
        ended = subprocess.run(
            argv,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{argv[0]} took longer than {_PATIENCE_S} s") from None
    problems = [line for line in ended.stderr.splitlines() if line.startswith(("E:", "W:", "dpkg"))]
    # With stale or no lists, `update` only warns.
    if ended.returncode or (argv[-1] == "update" and problems):
        reason = problems[-1] if problems else f"exit status {ended.returncode}"
        raise Unavailable(f"{argv[0]} {argv[-1]}: {reason}")


def main() -> int:
    """Fetch it; the reason in one line and exit status 1 where that is not possible."""
    try:
        fetch()
    except (Unavailable, OSError) as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
