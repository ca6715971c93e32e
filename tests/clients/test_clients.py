"""Real clients of Slurm with csub in the place of sbatch: the same results as with sbatch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ..bed import CsubUser
from .conftest import put_csub_in_place

pytestmark = [pytest.mark.slurm, pytest.mark.long]

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 300

CLIENTS = {
    "submitit": ("with_submitit.py",),
    "hydra": ("with_hydra.py",),
    "simple-slurm": ("with_simple_slurm.py",),
    "slurmpy": ("with_slurmpy.py",),
    "seml": ("with_seml.py",),
    "snakemake": ("with_snakemake.py",),
    "dask-jobqueue": ("with_dask.py",),
    "parsl": ("with_parsl.py",),
    "optuna": ("with_optuna.py",),
    "psij-python": ("with_psij.py",),
    "ReFrame": ("with_reframe.py",),
    "Kaldi": ("with_kaldi.py",),
    "many at once": ("with_parallel.py",),
    "GNU parallel": ("with_gnu_parallel.py", "sbatch"),
}


SHARING = {
    "qtoolkit": ("with_qtoolkit.py",),
    "executorlib and pysqa": ("with_pysqa.py",),
    "AiiDA": ("with_aiida.py",),
    "FireWorks": ("with_fireworks.py",),
}
"""Those whose scripts say in `#CSUB` lines that the tasks of an array share a GPU."""


def run_client(user: CsubUser, python: Path, words: tuple[str, ...], how: str, *, path: str) -> Any:
    """What a client's program has answered, in a directory of its own."""
    folder = user.home / how
    user.run(["mkdir", str(folder)])
    program = user.home / words[0]
    shutil.copy(PROGRAMS / words[0], program)
    program.chmod(0o644)
    # For those that open a login shell (docs/members.md).
    (user.home / ".bash_profile").write_text(f"PATH={path}\n")
    environment = {**user.environment, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    user.run(
        [str(python), str(program), *words[1:]], directory=folder, environment=environment,
        timeout_s=LIMIT_S,
    )  # fmt: skip
    return json.loads((folder / "answer.json").read_text())


def require_gnu_parallel() -> None:
    """Skip where there is none; moreutils has another program of that name."""
    shown = shutil.which("parallel") and subprocess.run(
        ["parallel", "--version"], capture_output=True, text=True, check=False
    )
    if not shown or "GNU parallel" not in shown.stdout:
        pytest.skip("GNU parallel is not installed")


def find_slurm_pl() -> str:
    """Kaldi's; skips where there is none."""
    root = os.environ.get("KALDI_ROOT", "")
    parallel = f"{root}/egs/wsj/s5/utils/parallel"
    found = shutil.which("slurm.pl", path=f"{parallel}:{os.environ.get('PATH', os.defpath)}")
    if found is None:
        pytest.skip("Kaldi's slurm.pl is in no package: set KALDI_ROOT to a checkout of Kaldi")
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_has_the_same_results_as_with_sbatch(
    user: CsubUser, clients_python: Path, client: str
) -> None:
    words = CLIENTS[client]
    if client == "GNU parallel":
        require_gnu_parallel()
    if client == "Kaldi":
        user.extra["SLURM_PL"] = find_slurm_pl()
    path = f"{clients_python.parent}:{user.environment['PATH']}"
    expected = run_client(user, clients_python, words, "with-sbatch", path=path)
    # csub has not been there yet.
    assert json.loads(user.csub("queue", "--all", "--json").stdout) == []
    links = put_csub_in_place(user)
    found = run_client(user, clients_python, words, "with-csub", path=f"{links}:{path}")
    assert found == expected
    assert json.loads(user.csub("queue", "--all", "--json").stdout)


@pytest.mark.parametrize("client", SHARING)
def test_tasks_of_a_client_share_a_gpu(user: CsubUser, clients_python: Path, client: str) -> None:
    words = SHARING[client]
    path = f"{clients_python.parent}:{user.environment['PATH']}"
    expected = run_client(user, clients_python, words, "with-sbatch", path=path)
    links = put_csub_in_place(user)
    found = run_client(user, clients_python, words, "with-csub", path=f"{links}:{path}")
    assert found == expected
    rows = json.loads(user.csub("history", "--json").stdout)
    shared = [row for row in rows if row["name"] == "sweep"]
    assert len({row["member"].partition("/")[0] for row in shared}) == 1
    assert len(list(user.state.glob("packs/*"))) == len(rows) - len(shared) + 1
    assert sorted(row["state"] for row in shared)[:1] == ["CANCELLED"]
    assert len(shared) == 4


SINGLE = ("submitit", "snakemake", "parsl", "psij-python")
"""Those that submit one job at a time; each of their programs has several at once."""


@pytest.mark.parametrize("client", SINGLE)
def test_single_jobs_of_a_client_share(user: CsubUser, clients_python: Path, client: str) -> None:
    path = f"{put_csub_in_place(user)}:{clients_python.parent}:{user.environment['PATH']}"
    run_client(user, clients_python, CLIENTS[client], "with-csub", path=path)
    packs, rows = list_packs_of_jobs(user)
    assert max(packs.values()) > 1, rows


def test_small_rules_of_a_workflow_run_side_by_side(user: CsubUser, clients_python: Path) -> None:
    path = f"{put_csub_in_place(user)}:{clients_python.parent}:{user.environment['PATH']}"
    found = run_client(user, clients_python, ("with_many_rules.py",), "with-csub", path=path)
    assert found == {"numbers": [str(number) for number in range(20)], "ids": 20}
    packs, rows = list_packs_of_jobs(user)
    assert sum(count for count in packs.values() if count > 1) >= 15, rows


def list_packs_of_jobs(user: CsubUser) -> tuple[Counter[str], list[dict[str, Any]]]:
    """How many jobs each pack has had, and all that have ended."""
    rows = json.loads(user.csub("history", "--json").stdout)
    members = [path.parts[-3] for path in user.state.glob("packs/*/members/*")]
    return Counter(members), rows


def test_gnu_parallel_with_csub_by_its_own_name(user: CsubUser, clients_python: Path) -> None:
    require_gnu_parallel()
    path = user.environment["PATH"]
    program = "with_gnu_parallel.py"
    expected = run_client(user, clients_python, (program, "sbatch"), "with-sbatch", path=path)
    found = run_client(user, clients_python, (program, "csub"), "with-csub", path=path)
    assert found == expected


def test_one_task_of_submitit_is_cancelled(user: CsubUser, clients_python: Path) -> None:
    path = f"{put_csub_in_place(user)}:{clients_python.parent}:{user.environment['PATH']}"
    words = ("cancel_with_submitit.py",)
    ids, results = run_client(user, clients_python, words, "with-csub", path=path)
    job_id = ids[0].partition("_")[0]
    assert ids == [f"{job_id}_{number}" for number in range(4)]
    assert results == [0, 9]
    states = {number: row["state"] for number, row in user.finish(job_id).items()}
    assert states == {0: "COMPLETED", 1: "CANCELLED", 2: "CANCELLED", 3: "COMPLETED"}
