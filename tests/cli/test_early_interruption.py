"""Ctrl-C before csub has loaded what it needs: no traceback, and the shell's exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Python reads it first of all. The signal is this process's own, so it comes at that very import.
SITECUSTOMIZE = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTS_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""

MOMENTS = (
    "slurm_colloc.cli",
    "slurm_colloc.session.standard_streams",
    "slurm_colloc.errors",
    "slurm_colloc.model.printable",
    "slurm_colloc.cli.submit_command",
    "slurm_colloc.slurm.options",
)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("installed", [True, False])
def test_ctrl_c_while_modules_are_loaded_is_one_line(
    tmp_path: Path, moment: str, installed: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    csub = [str(Path(sys.executable).parent / "csub")] if installed else ["-m", "slurm_colloc"]
    done = subprocess.run(
        [sys.executable, *csub, "submit", "a.sh"],
        env={
            "HOME": str(tmp_path), "PATH": os.defpath, "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1", "INTERRUPTS_AT": moment,
        },
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "csub: interrupted\n")
