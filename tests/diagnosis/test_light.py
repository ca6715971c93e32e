"""Nobody pays for the doctor but who calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def imported_by(home: Path, *argv: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "slurm_colloc", *argv],
        capture_output=True, text=True, check=False, cwd=home,
        env={"PATH": "/nonexistent", "HOME": str(home)},
    )  # fmt: skip
    return {
        line.rpartition("|")[2].strip()
        for line in ended.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.mark.parametrize(
    "argv", [["queue", "--help"], ["doctor", "--help"], ["--help"], ["nonexistent.sh"]]
)
def test_other_commands_do_not_load_it(tmp_path: Path, argv: list[str]) -> None:
    loaded = imported_by(tmp_path, *argv)
    assert "slurm_colloc.errors" in loaded
    assert not [name for name in loaded if name.startswith("slurm_colloc.diagnosis")]


def test_the_doctor_does_and_would_be_seen(tmp_path: Path) -> None:
    assert "slurm_colloc.diagnosis.login_findings" in imported_by(
        tmp_path, "doctor", "--no-job", "--json"
    )
