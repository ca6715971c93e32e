"""A chain whose user may have one job in Slurm (MaxSubmitJobs): no second one can be submitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from ..cluster.conftest import accounts
from ..cluster.test_chain import PATIENCE_S, STEPS, check_links, list_jobs, read_chain
from ..wait_until import wait_until
from .accounting_sandbox import Accounting, running_accounting
from .test_accounting import list_names

__all__ = ["accounts"]

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def bed(accounts: tuple[str, ...]) -> Iterator[tuple[Accounting, Sandbox]]:
    name = list_names(accounts)[0]
    told = ["add account lab cluster=sandbox", f"add user {name} account=lab MaxSubmitJobs=1"]
    with running_accounting(prepare=told) as found:
        yield found


@pytest.fixture
def user(bed: tuple[Accounting, Sandbox], accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(bed[1], list_names(accounts)[0]) as somebody:
        yield somebody


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_chain_goes_on_under_a_limit_of_one_job(
    bed: tuple[Accounting, Sandbox], user: CsubUser, is_lifted: bool
) -> None:
    user.script("train.sh", STEPS)
    job_id = user.submit("--chain=4", "--gres=gpu:2", "--time=1", "train.sh", "a", "75")
    wait_until(lambda: bool(list_problems(user)), "the successor is refused", patience_s=120.0)
    (why,) = user.csub("why", job_id).stdout.splitlines()
    assert "; its successor could not be submitted: sbatch: " in why
    assert "Job violates accounting/QOS policy" in why
    assert list_jobs(user) == [job_id]
    assert user.output("saves.a") == ""
    if is_lifted:
        bed[0].administrate([f"modify user {user.name} set MaxSubmitJobs=-1"])
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    assert rows[1]["state"] == "COMPLETED"
    links = check_links(user, job_id)
    assert len(links) == 2
    assert (links[1]["job_id"] != job_id) is is_lifted
    # Its number stays, whatever Slurm job its link is.
    assert user.output("starts.a").split() == [job_id, job_id]


def list_problems(user: CsubUser) -> str:
    try:
        return str(read_chain(user)["problem"])
    except ValueError:
        # It has not begun.
        return ""
