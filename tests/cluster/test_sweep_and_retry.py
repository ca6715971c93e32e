"""A sweep on a real Slurm, whose failed members are tried again, and a table that is resumed."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ..bed import CsubUser

pytestmark = pytest.mark.slurm

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")


@pytest.mark.smoke
def test_what_failed_of_a_sweep_runs_again_and_all_is_in_one_table(user: CsubUser) -> None:
    user.script("train.sh", '[ -e fixed ] || exit "$SLURM_COLLOC_PARAM_CODE"; echo $1')
    job_id = user.csub(
        "sweep", "--parsable", *SHARE, "train.sh", "{code}", "code=0,0,3", "seed=1,2"
    ).stdout.strip()
    user.finish(job_id)
    (user.home / "fixed").touch()
    tried = user.csub("retry", job_id, "--time=3", "--wait")
    assert tried.returncode == 0, tried
    printed = user.csub("report", job_id, "--csv", "--where", "code=3").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [(row["member"], row["state"], row["retry_of"]) for row in rows] == [
        (f"{job_id}/5", "FAILED", ""), (f"{job_id}/6", "FAILED", ""),
        (f"{job_id}/7", "COMPLETED", f"{job_id}/5"), (f"{job_id}/8", "COMPLETED", f"{job_id}/6"),
    ]  # fmt: skip
    assert user.csub("logs", f"{job_id}/8").stdout == "3\n"


def test_runs_of_a_workload_start_at_the_same_moment(user: CsubUser) -> None:
    (user.home / "train.py").write_text("import time; print(time.time())\n")
    (user.home / "radt.csv").write_text(
        "Experiment,Workload,Name,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        "0,1,a,,,0,-,train.py,smi,\n0,1,b,,,0,-,train.py,smi,\n"
    )
    user.csub("batch", "--time=5", "--mem=100M", "-c1", "--wait", "radt.csv")
    rows = json.loads(user.csub("queue", "--all", "--json").stdout)
    moments = [float(user.csub("logs", row["member"]).stdout) for row in rows]
    # The first has waited for the second.
    starts = [row["started_at"] for row in rows]
    assert min(moments) >= max(starts) - 0.1
    assert "0,1,b,COMPLETED" in (user.home / "radt.status.csv").read_text()


@pytest.mark.root
def test_two_users_neither_see_nor_retry_what_is_the_others(
    user: CsubUser, other_user: CsubUser
) -> None:
    users, body = (user, other_user), '[ -e fixed ] || exit "$SLURM_COLLOC_PARAM_CODE"; id -un'
    ids = {}
    for one in users:
        # Not their homes are to keep them apart, but what csub itself has made.
        one.home.chmod(0o755)
        one.script("train.sh", body)
        ids[one.name] = one.csub(
            "sweep", "--parsable", *SHARE, "train.sh", "code=0,3"
        ).stdout.strip()
    for one in users:
        one.finish(ids[one.name])
    for one, other in (users, users[::-1]):
        own, others = ids[one.name], ids[other.name]
        for words in (("queue", "--all"), ("history",), ("history", "--where", "code=3")):
            rows = json.loads(one.csub(*words, "--json").stdout)
            assert {row["member"].partition("/")[0] for row in rows} == {own}, words
        for words in (("retry", others), ("logs", others), ("report", others)):
            refused = one.csub(*words, check=False)
            assert (refused.returncode, f"csub has no job {others}" in refused.stderr) == (7, True)
        # By way of the other's state they come no further.
        for words in (("queue", "--all"), ("retry", others), ("retry", "last"), ("batch", "-")):
            there = {"XDG_STATE_HOME": str(other.home / "state")}
            refused = one.run(["csub", *words], environment=there, check=False, stdin="true\n")
            assert (refused.returncode, refused.stderr.count("\n")) == (6, 1), refused
            assert refused.stdout == ""
    (user.home / "fixed").touch()
    user.csub("retry", "all", "--wait")
    assert user.csub("logs", f"{ids[user.name]}/3").stdout == f"{user.name}\n"
    assert list(other_user.members(ids[other_user.name])) == [1, 2]
