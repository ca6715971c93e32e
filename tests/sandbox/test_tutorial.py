"""The tutorial does what it says, on a Slurm that is gone afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import require_slurm


def run_tutorial(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slurm_colloc", "tutorial", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slurm
def test_the_tutorial_does_what_it_says() -> None:
    require_slurm()
    before = set(Path("/var/tmp").glob("cst*"))
    ended = run_tutorial()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "last line of its output: ValueError: the loss is not a number" in ended.stdout
    # The pack of four, and the one that another has joined.
    assert re.search(r"members (\d+)/1-\1/4 in 1 pack", ended.stderr)
    assert re.search(r"(\d+)/2, shares a pack with \1/1: 2 of \d+ places", ended.stderr)
    # It has a number of its own, under which it is shown.
    number = re.findall(r"^Submitted batch job (\d+)$", ended.stdout, re.MULTILINE)[-1]
    assert is_own_number(number)
    assert re.search(rf"^{number} PENDING", ended.stdout, re.MULTILINE)
    assert ended.stdout.rstrip().endswith("what was gained.")
    assert set(Path("/var/tmp").glob("cst*")) == before


def test_a_word_too_many_is_refused_before_anything_starts() -> None:
    refused = run_tutorial("now")
    assert refused.returncode == 2
    assert refused.stderr == "csub: error: csub tutorial takes no 'now': csub tutorial --help\n"
