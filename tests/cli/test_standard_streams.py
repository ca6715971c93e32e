"""Standard streams that are closed, full, or read by nobody: a sentence, or nothing at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.store.profile_updates import add_observations

from ..suites import leave_to_parts
from .test_profile import observe

CSUB = [sys.executable, "-m", "slurm_colloc"]
COMMANDS = [["--help"], ["--version"], ["profile", "list"], ["profile", "list", "--json"],
            ["plan", "a.sh"], ["submit", "--help"], ["admin", "--help"]]  # fmt: skip
OF_EACH_KIND = (["--version"], ["profile", "list", "--json"], ["plan", "a.sh"])
CASES = leave_to_parts(COMMANDS, but=OF_EACH_KIND)
FULL = "csub: cannot write to standard output: No space left on device\n"
CLOSED = "csub: cannot write to standard output: Bad file descriptor\n"


def run(
    folder: Path, redirections: str, *words: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run csub by a shell, which can close what subprocess cannot."""
    (folder / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *CSUB, *words],
        env={"HOME": str(folder), "PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        cwd=folder, input=stdin, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_output_that_takes_nothing_is_said_in_a_sentence(tmp_path: Path, words: list[str]) -> None:
    for redirections, said in ((">/dev/full", FULL), (">&-", CLOSED), (">&- <&-", CLOSED)):
        done = run(tmp_path, redirections, *words)
        told = done.stderr.decode()
        assert done.returncode == 1, redirections
        assert said in told, redirections
        assert "Traceback" not in told
        assert all(line.startswith("csub: ") for line in told.splitlines()), told


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_messages_that_nobody_takes_change_nothing(tmp_path: Path, words: list[str]) -> None:
    whole = run(tmp_path, "", *words)
    assert whole.returncode == 0, whole.stderr
    for redirections in ("2>&-", "2>/dev/full", "<&-", "2>&- <&-"):
        done = run(tmp_path, redirections, *words)
        assert (done.returncode, done.stdout) == (0, whole.stdout), redirections
    for redirections in ("2>&- >&-", "2>/dev/full >/dev/full", "2>&- >&- <&-"):
        done = run(tmp_path, redirections, *words)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b""), redirections


def test_a_short_answer_that_is_lost_is_told_beside_the_reason(tmp_path: Path) -> None:
    done = run(tmp_path, ">/dev/full", "--version")
    assert done.stderr.decode().splitlines()[1:] == [
        "csub: not written: " + run(tmp_path, "", "--version").stdout.decode().strip()
    ]


def test_the_status_of_a_refusal_stays(tmp_path: Path) -> None:
    for redirections in ("", ">/dev/full", ">&-", "2>&-", "2>/dev/full"):
        assert run(tmp_path, redirections, "nothing.sh").returncode == 2, redirections


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_news(tmp_path: Path, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*CSUB, *words],
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_input_that_is_closed_is_said(tmp_path: Path) -> None:
    for words in ([], ["profile", "import", "-"]):
        done = run(tmp_path, "<&-", *words)
        assert done.returncode == 2
        said = b"csub: error: cannot read standard input: Bad file descriptor"
        assert done.stderr.startswith(said), words
        assert done.stderr.count(b"\n") == 1, words


@pytest.mark.parametrize(
    ("encoding", "name"), [("ascii", "vit-\\xe9"), ("latin-1", "vit-\xe9"), ("utf-8", "vit-\xe9")]
)
def test_a_name_that_the_terminal_cannot_show_is_shown_by_its_numbers(
    tmp_path: Path, encoding: str, name: str
) -> None:
    state = tmp_path / ".local" / "state" / "slurm_colloc"
    add_observations(state, [observe(1, name="vit-\xe9")])
    done = subprocess.run(
        [*CSUB, "profile", "list"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, "PYTHONIOENCODING": encoding},
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert f" {name} ".encode(encoding) in done.stdout


def test_a_submission_whose_answer_is_lost_is_told_by_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {"sbatch": "echo 4711", "sinfo": "true", "squeue": "true"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >/dev/full', "sh", *CSUB, "a.sh"],
        env={"HOME": str(tmp_path), "PATH": f"{folder}:{os.defpath}"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert FULL in done.stderr
    assert "csub: not written: Submitted batch job 4711" in done.stderr


def test_output_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "slurm_colloc"
    add_observations(state, [observe(n, signature=f"{n:032x}") for n in range(120)])
    whole = run(tmp_path, "", "profile", "export").stdout
    assert len(whole) > 1 << 16, "more than a pipe holds"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [*CSUB, "profile", "export"],
        env={"HOME": str(tmp_path), "PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        stdout=writing, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            assert file.read() == whole
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
