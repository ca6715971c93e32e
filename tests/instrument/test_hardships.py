"""A program that is counted ends as it would have, whatever is wrong with the counting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.store.progress_counters import read_member_progress

from .counted_programs import build_environment, run_python

COUNT = "from slurm_colloc import progress\n[progress.step() for _ in range(3)]\nprint('done')\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where counter files go."""
    made = tmp_path / "progress"
    made.mkdir()
    return made


def test_a_directory_that_is_gone_by_then(directory: Path) -> None:
    ended = run_python(f"import os; os.rmdir({str(directory)!r})\n{COUNT}", directory)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert ended.progress is None


def test_a_directory_that_may_not_be_written(directory: Path) -> None:
    code = "import os\nif not os.geteuid(): os.setgid(65534); os.setuid(65534)\n" + COUNT
    directory.chmod(0o500)
    directory.parent.chmod(0o755)
    ended = run_python(code, directory)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert ended.progress is None


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a tmpfs")
@pytest.mark.parametrize("option", ["size=4k,nr_inodes=10", "ro", "size=64k,nr_inodes=1"])
def test_a_full_or_read_only_shared_memory(directory: Path, option: str) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", option, "tmpfs", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        if "size=4k" in option:
            (directory / "full").write_bytes(bytes(4096))
        ended = run_python(COUNT, directory)
        left = [path.name for path in directory.iterdir()]
    finally:
        subprocess.run(["umount", directory], check=True)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert ended.progress is None
    # Nothing half made stays behind.
    assert left == (["full"] if "size=4k" in option else [])


def test_a_limit_on_file_sizes_is_no_signal(directory: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n" + COUNT
    ended = run_python(code, directory)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert list(directory.iterdir()) == []


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    ended = run_python(COUNT, path)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_program_that_closes_all_descriptors(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    code = (
        "import os\nfrom slurm_colloc import progress\nprogress.step()\n"
        "os.closerange(3, 1000)\n"
        # Numbers that were ours are the program's now.
        f"kept = [os.open({str(other)!r}, os.O_CREAT | os.O_WRONLY) for _ in range(8)]\n"
        "progress.step()\n"
        "if not os.fork():\n"
        "    progress.step()\n"
        "    [os.write(number, b'x') for number in kept]\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "[os.write(number, b'y') for number in kept]\n"
    )
    ended = run_python(code, directory)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.progress is not None
    assert sorted(p.steps for p in ended.progress.processes) == [1, 2]


def test_a_program_that_ends_without_a_word(directory: Path) -> None:
    ended = run_python(f"import os\n{COUNT}os._exit(3)", directory)
    assert ended.code == 3
    assert ended.progress is not None
    assert ended.progress.steps == 3
    assert not ended.progress.processes[0].finished


def test_a_program_that_is_killed_while_it_counts(directory: Path) -> None:
    code = "from slurm_colloc import progress\nwhile True: progress.step(samples=2)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=build_environment(directory)
    ) as process:
        while (seen := read_member_progress(str(directory))) is None or seen.steps < 1000:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    ended = read_member_progress(str(directory))
    assert ended is not None
    assert ended.steps >= seen.steps
    assert ended.samples in (2 * ended.steps, 2 * ended.steps - 2)


def test_a_reader_never_sees_half_of_a_count(directory: Path) -> None:
    # Some 150,000 steps a second, far more than any training does.
    code = (
        "from slurm_colloc import progress\n"
        "for _ in range(200000):\n"
        "    progress.step(samples=2)\n"
        "    for _ in range(200): pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=build_environment(directory)
    ) as process:
        looks = 0
        while process.poll() is None:
            seen = read_member_progress(str(directory))
            if seen is not None:
                looks += 1
                # A writer that was stopped while it wrote leaves one of the two behind by one.
                assert seen.samples in (2 * seen.steps, 2 * seen.steps - 2)
    assert process.returncode == 0
    assert looks > 10
    ended = read_member_progress(str(directory))
    assert ended is not None
    assert (ended.steps, ended.samples) == (200_000, 400_000)


def test_a_program_that_replaces_itself_goes_on_counting(directory: Path) -> None:
    code = (
        "import os, sys\nfrom slurm_colloc import progress\n"
        "[progress.step(samples=4) for _ in range(3)]\n"
        "if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, '-c', sys.argv[0], 'x'])"
    )
    code = code.replace("sys.argv[0], 'x'", "os.environ['CODE'], 'x'")
    ended = run_python(code, directory, CODE=code)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.progress is not None
    assert len(ended.progress.processes) == 1
    assert (ended.progress.steps, ended.progress.samples) == (6, 24)


def test_a_forked_child_counts_for_itself(directory: Path) -> None:
    code = (
        "import os\nfrom slurm_colloc import progress\nprogress.step()\n"
        "if not os.fork():\n    progress.step(); progress.step()\nelse:\n    os.wait()\n"
    )
    ended = run_python(code, directory)
    assert ended.progress is not None
    assert sorted(p.steps for p in ended.progress.processes) == [1, 2]
    assert ended.progress.steps == 3
    assert all(p.finished for p in ended.progress.processes)
