"""csub in the place of sbatch, against the real one on the same cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_under_its_name_sbatch_says_its_version_itself(user: CsubUser, word: str) -> None:
    link = user.home / "sbatch"
    link.symlink_to(Path(sys.executable).parent / "csub")
    real = user.run([user.find("sbatch"), word]).stdout
    assert user.run([str(link), word]).stdout == real
    assert user.csub("--version").stdout.startswith("csub ")


@pytest.mark.parametrize("export", ["ALL", "all", "NONE", "ALL,X=1", "HOME"])
def test_steps_take_the_export_of_a_job_where_sbatch_says_so(user: CsubUser, export: str) -> None:
    user.script("see.sh", 'echo "[$SLURM_EXPORT_ENV]"')
    options = [f"--export={export}", "--parsable", "-o"]
    user.run([user.find("sbatch"), *options, "sbatch.out", "see.sh"])
    user.csub(*options, "csub.out", "see.sh")
    wait_until(lambda: user.output("sbatch.out"), "sbatch's job has run")
    wait_until(lambda: user.output("csub.out"), "csub's job has run")
    assert user.output("csub.out") == user.output("sbatch.out")
