"""csub check on the scripts as people write them, and as a user calls it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.check.check_script import check_script_text
from slurm_colloc.check.collisions import Severity, leave_out
from slurm_colloc.model.job import Job

from ..bed import CsubUser
from .catalogue import CASES, HERE, PROGRAMS, Case

DEMO = HERE.parent / "demo"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_of_each_script_exactly_what_collides_is_said(case: Case, tmp_path: Path) -> None:
    for name in case.companions:
        if name.endswith(".py"):
            shutil.copy(PROGRAMS / name, tmp_path)
    job = Job(1, "job", case.name, case.arguments, str(tmp_path))
    findings, read = check_script_text(job, (HERE / case.name).read_bytes())
    assert tuple((finding.kind, finding.place) for finding in findings) == case.collides
    # Every program that a script starts was found and read.
    assert read == [case.name, *(name for name in case.companions if name.endswith(".py"))]


LINES_SAID = {
    "hydra.sh": 2, "hydra_app.py": 1, "job_directory.sh": 1, "lightning.sh": 1,
    "lightning_train.py": 1,
}  # fmt: skip
"""Of scripts of which something is said where they are submitted as a job by itself."""


@pytest.mark.parametrize(
    "script",
    [*HERE.glob("*.sh"), *PROGRAMS.glob("*.py"), HERE / "shebang.py", *DEMO.glob("train.*")],
    ids=lambda path: path.name,
)
def test_none_of_the_scripts_is_kept_alone_and_little_is_said_of_it(
    script: Path, tmp_path: Path
) -> None:
    for program in (*PROGRAMS.glob("*.py"), *DEMO.glob("*.py")):
        shutil.copy(program, tmp_path)
    text = script.read_bytes()
    content = text if text.startswith(b"#!") else b"#!/usr/bin/env python3\n" + text
    findings, _ = check_script_text(Job(1, "job", script.name, (), str(tmp_path)), content)
    said = [f for f in leave_out(findings, (), own_id=True) if f.level is not Severity.NOTE]
    assert not [finding for finding in said if finding.level.keeps_alone]
    assert len(said) == LINES_SAID.get(script.name, 0), said


@pytest.mark.slurm
def test_a_user_learns_what_collides_and_how_many_fit(scripts_user: CsubUser) -> None:
    home = scripts_user.home
    scripts_user.script(
        "clash.sh",
        "touch was-run\nexport MASTER_PORT=29500\npython clash.py\n",
        directives="#SBATCH --gres=gpu:1 --time=5\n#CSUB --gpu-mem=1G",
    )
    (home / "clash.py").write_text('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n')
    shown = scripts_user.csub("check", "-c2", "--mem=500M", "clash.sh", check=False)
    assert shown.returncode == 1
    assert shown.stderr == ""
    assert "clash.sh with clash.py: 2 things stand in the way of sharing a GPU" in shown.stdout
    assert "clash.sh:5" in shown.stdout
    assert "clash.py:2" in shown.stdout
    # 32 CPUs and 64,000 MB for four GPUs.
    assert "On one GPU: 4 jobs like this at the same time" in shown.stdout
    assert "2 of 8 " in shown.stdout
    assert "500 of 16000 MB" in shown.stdout
    value = json.loads(scripts_user.csub("check", "--json", "clash.sh", check=False).stdout)
    assert [(f["kind"], f["file"], f["lines"]) for f in value["findings"]] == [
        ("fixed-port", "clash.sh", [5]),
        ("cuda-visible-devices", "clash.py", [2]),
    ]
    assert value["sharing"]["members"] == 4
    assert not (home / "was-run").exists()
    assert scripts_user.run(["squeue", "-h", "-u", scripts_user.name]).stdout == ""


@pytest.mark.slurm
def test_the_exit_status_tells_programs(scripts_user: CsubUser) -> None:
    scripts_user.script("fine.sh", "python -c 'print(1)'")
    fine = scripts_user.csub("check", "--gres=gpu:1", "--time=5", "fine.sh")
    assert fine.stdout.startswith("fine.sh: nothing found that would collide\n")
    whole = scripts_user.csub("check", "--gres=gpu:1", "-c8", "fine.sh", check=False)
    assert whole.returncode == 1
    assert "3 more would fit with --cpus-per-task=2" in whole.stdout
    for wrong in (("--no-such-option", "fine.sh"), ("gone.sh",), ("--time=x", "fine.sh")):
        refused = scripts_user.csub("check", *wrong, check=False)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
    assert scripts_user.csub("check", "--help").stdout.startswith("Usage: csub check")


def test_without_slurm_the_script_is_checked_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\nexport MASTER_PORT=29500\n")
    ended = subprocess.run(
        [sys.executable, "-m", "slurm_colloc", "check", "--gres=gpu:1", "a.sh"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "a.sh:2" in ended.stdout
    assert "How many would share a GPU is not known: " in ended.stdout
