"""The recipes of docs/recipes run as they are, with the tools that they are about."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..bed import CsubUser, administrate

pytestmark = [pytest.mark.slurm, pytest.mark.long]

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
LIMIT_S = 300


def copy_recipe(user: CsubUser, name: str) -> Path:
    """A recipe in the user's home."""
    target = user.home / name
    if (RECIPES / name).is_dir():
        shutil.copytree(RECIPES / name, target)
    else:
        shutil.copy(RECIPES / name, target)
    for path in (target, *target.rglob("*")):
        os.chown(path, user.uid, user.gid)
    return target


def run_recipe(user: CsubUser, python: Path, name: str, **variables: str) -> str:
    """What a recipe in Python prints."""
    copy_recipe(user, name)
    return user.run(
        [str(python), "-B", name], environment=variables, timeout_s=LIMIT_S
    ).stdout  # fmt: skip


def list_members(user: CsubUser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(user.csub("history", "--json").stdout)
    return found


@contextlib.contextmanager
def no_job_starts(user: CsubUser) -> Iterator[None]:
    """Meanwhile all that is submitted waits, and can be joined."""
    administrate(user, "scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        yield
    finally:
        administrate(user, "scontrol", "update", "PartitionName=gpu", "State=UP")


def wait_for_members(user: CsubUser, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(json.loads(user.csub("queue", "--json").stdout)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def end_well(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said


def test_optuna_workers_share_a_study(user: CsubUser, clients_python: Path) -> None:
    said = run_recipe(user, clients_python, "optuna_workers.py")
    assert re.search(r"^20 trials, best \{'lr': ", said, re.MULTILINE)
    assert [row["name"] for row in list_members(user)] == ["work"] * 4


def test_each_member_is_a_run_of_wandb(user: CsubUser, clients_python: Path) -> None:
    said = run_recipe(
        user, clients_python, "wandb_runs.py", WANDB_MODE="offline", WANDB_SILENT="true"
    )
    assert (
        len(re.findall(r"^\d+/[0-3]  lr=0\.[12] seed=[01]  loss=0\.\d+$", said, re.MULTILINE)) == 4
    )
    assert len(list(user.home.glob("wandb/offline-run-*"))) == 4


def test_each_member_is_a_run_of_mlflow(user: CsubUser, clients_python: Path) -> None:
    said = run_recipe(user, clients_python, "mlflow_runs.py", MLFLOW_ALLOW_FILE_STORE="true")
    assert said.splitlines()[-1] == "best lr 0.2"
    members = {path.read_text() for path in user.home.glob("mlruns/*/*/tags/csub.member")}
    assert members == {row["member"] for row in list_members(user)}
    assert len(members) == 3


def test_jobs_of_a_rule_of_snakemake_join_each_other(user: CsubUser, clients_python: Path) -> None:
    folder = copy_recipe(user, "snakemake")
    words = [str(clients_python), "-m", "snakemake", "--workflow-profile", "profile", "--jobs=8"]
    with no_job_starts(user):
        running = user.start(["sh", "-c", f'cd "$0" && exec {shlex.join(words)}', str(folder)])
        wait_for_members(user, 3)
    end_well(running)
    outputs = {path.name: path.read_text().split() for path in folder.glob("out/*.txt")}
    assert {name: words[1] for name, words in outputs.items()} == {
        "0.1.txt": "0.1", "0.2.txt": "0.2", "0.3.txt": "0.3",
    }  # fmt: skip
    members = {words[0] for words in outputs.values()}
    assert len(members) == 3
    # One pack, which the second and third have joined.
    assert len({member.partition("/")[0] for member in members}) == 1


def test_tasks_of_nextflow_wait_for_members_that_share(user: CsubUser) -> None:
    # Nextflow is in no registry that the tests use: its tasks' script is run as it runs them.
    folder = copy_recipe(user, "nextflow")
    found = re.search(r'"""\n(.*?)"""', (folder / "main.nf").read_text(), re.DOTALL)
    assert found is not None
    tasks = []
    with no_job_starts(user):
        for lr in ("0.1", "0.2", "0.3"):
            work = folder / f"work-{lr}"
            user.run(["mkdir", str(work)])
            text = found[1].replace("${projectDir}", str(folder)).replace("${lr}", lr)
            tasks.append(user.start(["sh", "-c", f"cd {work} && bash -ue -c '{text}'"]))
        wait_for_members(user, 3)
    for task in tasks:
        end_well(task)
    losses = [path.read_text().split() for path in folder.glob("work-*/loss.txt")]
    assert sorted(words[1] for words in losses) == ["0.1", "0.2", "0.3"]
    assert len({words[0] for words in losses}) == 3
    assert len({words[0].partition("/")[0] for words in losses}) == 1
