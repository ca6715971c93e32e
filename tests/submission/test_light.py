"""A submission loads nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pandas", "pyarrow", "torch", "numpy", "typer", "click", "rich", "pydantic", "asyncio",
         "importlib.metadata", "jinja2.ext", "urllib.request", "email")  # fmt: skip
COMMANDS = {
    "sinfo": 'echo "gpu*|64|512000|gpu:4|1-00:00:00|n/a"',
    "squeue": "true",
    "sacct": "true",
    "scontrol": "echo MaxArraySize = 1001",
    "sbatch": 'printf "%s\\n" "$@" >"$CALLED"; echo 4711',
}


@pytest.fixture
def login_node(tmp_path: Path) -> dict[str, str]:
    """An environment with Slurm commands that give fixed answers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in COMMANDS.items():
        # csub gives sbatch a small environment, so the path stands in the command.
        text = body.replace("$CALLED", str(tmp_path / "called"))
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    return {
        "PATH": f"{folder}:{os.defpath}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["a.sh"], "Submitted batch job 4711\n"),
        (["pack", "a.sh", "a.sh"], "Submitted batch job 4711\n"),
        (["--array=0-7", "--parsable", "a.sh"], "4711\n"),
    ],
)
def test_what_a_submission_imports(
    tmp_path: Path, login_node: dict[str, str], argv: list[str], answer: str
) -> None:
    # The second call finds the open pack of the first and everything compiled.
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "slurm_colloc", *argv],
            cwd=tmp_path, env=login_node, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == answer
        imported = {
            line.rpartition("|")[2].strip()
            for line in ended.stderr.splitlines()
            if line.startswith("import time:")
        }
        assert "slurm_colloc.submission.submit" in imported
        assert imported.isdisjoint(HEAVY), imported & set(HEAVY)
    words = (tmp_path / "called").read_text().splitlines()
    assert words[0] == "--parsable"
    assert words[-1].startswith(f"{tmp_path}/state/slurm_colloc/packs/")


def test_heavy_modules_would_be_seen(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import typer"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "typer" in {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
