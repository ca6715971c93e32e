"""csub retry and --retries: members that did not complete, once more, on a fake Slurm."""

from __future__ import annotations

import json
from typing import Any

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import check_refused

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")
FAILS = "echo $SECRET $SLURM_COLLOC_CHECKPOINT $*; [ -e fixed ] || exit $1"


def list_all(user: CsubUser, job_id: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(user.csub("queue", "--all", "--json", job_id).stdout)
    return {row["member"]: row for row in rows}


def sweep(user: CsubUser, *words: str) -> str:
    sent = user.run(
        ["csub", "sweep", "--parsable", *SHARE, *words], environment={"SECRET": "first"}
    )
    job_id = sent.stdout.strip()
    user.finish(job_id)
    return job_id


def test_what_failed_runs_again_as_a_new_member_of_its_submission(user: CsubUser) -> None:
    user.script("train.sh", FAILS)
    job_id = sweep(user, "train.sh", "{code}", "code=0,3,4")
    user.script("train.sh", "echo another script")
    (user.home / "fixed").touch()
    answer = user.run(["csub", "retry", job_id, "--wait"], environment={"SECRET": "second"})
    assert answer.stdout == f"Submitted batch job {job_id}\n"
    assert f"{job_id}/4 tries {job_id}/2 again, {job_id}/5 tries {job_id}/3 again" in answer.stderr
    rows = list_all(user, job_id)
    assert [rows[f"{job_id}/{n}"]["state"] for n in range(1, 6)] == [
        "COMPLETED", "FAILED", "FAILED", "COMPLETED", "COMPLETED",
    ]  # fmt: skip
    assert rows[f"{job_id}/4"]["retry_of"] == f"{job_id}/2"
    assert rows[f"{job_id}/5"]["parameters"] == {"code": "4"}
    assert user.csub("logs", f"{job_id}/5").stdout == f"first {job_id}_3 4 code=4\n"
    # Of each the last try counts.
    assert user.csub("wait", job_id).returncode == 0
    assert user.csub("wait", f"{job_id}/2", check=False).returncode == 3
    none = user.csub("retry", job_id, check=False)
    assert (none.returncode, "no member to try again" in none.stderr) == (2, True)


def test_how_they_ended_and_their_parameters_choose(user: CsubUser) -> None:
    user.script("train.sh", FAILS)
    job_id = sweep(user, "train.sh", "code=3,4,5")
    none = user.csub("retry", job_id, "--timeout", check=False)
    assert none.returncode == 2
    told = json.loads(user.csub("retry", "--json", job_id, "--failed", "--where", "code=4").stdout)
    assert told["retries"] == {f"{job_id}/4": f"{job_id}/2"}
    user.finish(job_id)
    # A try that has failed is tried again, too.
    told = json.loads(user.csub("retry", "--json", f"{job_id}/2").stdout)
    assert told["retries"] == {f"{job_id}/5": f"{job_id}/4"}
    user.finish(job_id)
    assert list_all(user, job_id)[f"{job_id}/5"]["retry_of"] == f"{job_id}/2"


def test_a_retry_may_ask_for_more(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", FAILS)
    job_id = sweep(user, "train.sh", "code=3,4")
    slurm.pause()
    user.csub("retry", job_id, "--time=60", "--mem=200M")
    limits = {row["wall_limit_s"] for row in list_all(user, job_id).values() if row["retry_of"]}
    assert min(limits) >= 3600
    check_refused(
        user, ("retry", job_id, "--output=x"), 2,
        f"{job_id}: no member to try again: members that failed, or ran out of time "
        "or memory, can be; see csub history",
    )  # fmt: skip
    user.csub("cancel", job_id)
    refused = user.csub("retry", f"{job_id}/3", "--output=x", check=False)
    assert "--output cannot be changed for another try" in refused.stderr
    slurm.go_on()


def test_a_job_alone_and_one_that_was_cancelled(user: CsubUser) -> None:
    user.script("train.sh", FAILS)
    alone = user.submit("--time=5", "train.sh", "3")
    user.finish(alone)
    user.csub("retry", "last", "--wait", check=False)
    assert list_all(user, alone)[f"{alone}/2"]["state"] == "FAILED"
    user.script("sleep.sh", "sleep 60")
    job_id = user.submit("--hold", "--time=5", "sleep.sh")
    user.csub("cancel", job_id)
    user.finish(job_id)
    assert "no member to try" in user.csub("retry", job_id, check=False).stderr
    again = user.csub("retry", f"{job_id}/1")
    assert f"{job_id}/1: the environment was not kept" in again.stderr
    user.csub("cancel", "all")


def test_secrets_of_what_completed_are_gone_and_others_are_closed(user: CsubUser) -> None:
    user.script("train.sh", FAILS)
    job_id = sweep(user, "train.sh", "{code}", "code=0,3")
    kept = [path for path in user.state.glob("packs/*/members/*/*") if path.name.startswith("env")]
    assert [(path.parent.name, path.name) for path in kept] == [("0002", "env.again")]
    assert kept[0].stat().st_mode & 0o777 == 0o600
    assert list_all(user, job_id)


def test_retries_start_a_job_again_where_it_fails(user: CsubUser) -> None:
    user.script("train.sh", "echo $SLURM_RESTART_COUNT; echo x >> tries.$1; exit 3")
    job_id = user.csub(
        "sweep", "--parsable", *SHARE, "--retries=2", "train.sh", "{n}", "--n", "1,2"
    ).stdout.strip()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"FAILED"}
    assert {row["starts"] for row in rows.values()} == {3}
    assert (user.home / "tries.1").read_text() == "x\n" * 3
    refused = user.csub("--retries=lots", "train.sh", check=False)
    assert "--retries=lots: a number from 0 to 100 is needed" in refused.stderr


def test_a_job_alone_is_started_again_in_its_allocation(user: CsubUser) -> None:
    user.script("train.sh", "echo $SLURM_RESTART_COUNT; [ -e once ] && exit 0; touch once; exit 3")
    job_id = user.submit("--time=5", "--retries=1", "train.sh")
    (row,) = user.finish(job_id).values()
    assert (row["state"], row["starts"]) == ("COMPLETED", 2)
    assert user.csub("logs", job_id).stdout.splitlines()[-1] in ("", "1")


def test_all_passes_over_what_cannot_run_again_and_a_name_submits_nothing_by_half(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("train.sh", FAILS)
    job_id = sweep(user, "train.sh", "code=3,4")
    local = user.submit("pack", "--local", *SHARE, "train.sh 3", "train.sh 4")
    user.finish(local)
    before = len(slurm.look())
    check_refused(
        user, ("retry", job_id, local), 2,
        f"{local} cannot be tried again: it ran without Slurm: submit the script again",
    )  # fmt: skip
    assert len(slurm.look()) == before
    told = user.csub("retry", "all", "--wait", check=False)
    assert f"csub: {local} cannot be tried again: it ran without Slurm\n" in told.stderr
    assert f"{job_id}/3 tries {job_id}/1 again" in told.stderr
    assert len(list_all(user, job_id)) == 4
