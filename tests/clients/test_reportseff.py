"""reportseff on a sandbox with accounting, alone and with csub in the place of sacct."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..accounting.accounting_sandbox import require_accounting
from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .conftest import put_csub_in_place

pytestmark = [pytest.mark.slurm, pytest.mark.long]

GO = 'while [ ! -e go ]; do sleep 0.1; done; [ "$SLURM_ARRAY_TASK_ID" != 2 ]'
OPTIONS = ("--array=0-3", "--time=5", "--job-name=sweep", "--cpus-per-task=1", "--mem=100M")


@pytest.fixture(scope="module")
def accounted_user(accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    require_accounting()
    with (
        running_sandbox(accounting=True, cpus_per_node=16) as sandbox,
        user_of(sandbox, accounts[0]) as somebody,
    ):
        yield somebody


def report(user: CsubUser, python: Path, job_id: str, path: str) -> dict[str, list[str]]:
    """reportseff's rows by task, without its words about efficiency."""
    shown = user.run(
        [str(python.parent / "reportseff"), "--no-color", "--parsable",
         "--format=jobid,jobname,state,exitcode,reqmem,ncpus", job_id],
        environment={"PATH": path},
    ).stdout  # fmt: skip
    rows = [line.split("|") for line in shown.splitlines()[1:]]
    return {re.sub(rf"^{job_id}", "JOB", row[0]): row[1:] for row in rows}


def test_reportseff_tells_of_tasks_as_of_sbatch_s_own(
    accounted_user: CsubUser, clients_python: Path
) -> None:
    user = accounted_user
    user.script("go.sh", GO)
    path = user.environment["PATH"]
    linked = f"{put_csub_in_place(user)}:{path}"
    control = user.run(["sbatch", "--parsable", *OPTIONS, "go.sh"]).stdout.strip()
    packed = user.submit("--gres=gpu:1", "--share=timeslice", "--degree=4", *OPTIONS, "go.sh")
    user.wait_for_states(packed, "RUNNING")
    # One is cancelled while it runs.
    user.run(["scancel", f"{control}_3", f"{packed}_3"], environment={"PATH": linked})
    user.wait_for_states(packed, {3: "CANCELLED"})
    user.run(["touch", "go"])
    user.finish(packed)
    wait_until(
        lambda: (
            "RUNNING" not in str(expected := report(user, clients_python, control, path))
            and len(expected) == 4
        ),
        "sacct to know of the ends",
    )
    expected = report(user, clients_python, control, path)
    assert {name: row[1] for name, row in expected.items()} == {
        "JOB_0": "COMPLETED", "JOB_1": "COMPLETED", "JOB_2": "FAILED", "JOB_3": "CANCELLED",
    }  # fmt: skip
    assert report(user, clients_python, packed, linked) == expected
    # Slurm's own sacct knows the pack, and its members as steps.
    of_pack = report(user, clients_python, packed, path)
    assert [row[1] for row in of_pack.values()] == ["FAILED"]
    steps = user.run(["sacct", "-n", "-P", "-o", "jobname,state", "-j", packed]).stdout.split()
    assert {f"{packed}/0|COMPLETED", f"{packed}/1|COMPLETED", f"{packed}/2|FAILED"} <= set(steps)
