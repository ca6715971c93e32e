"""What a member's script asks of other members of its array, in its own pack and in another."""

from __future__ import annotations

import re

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

ARRAY = ("--array=1-8", "--gres=gpu:1", "--share=timeslice", "--pack-size=4", "--degree=3")
GO = "while [ ! -e go ]; do sleep 0.1; done"
SAYS = """\
case $SLURM_ARRAY_TASK_ID in
6) {orders} ;;
esac
"""


def submit(user: CsubUser, orders: str, *options: str) -> str:
    """Tasks 1 to 4 in one pack, 5 to 8 in another; of each, three run. Task 6 gives orders."""
    lines = "".join(f'{order} >>said 2>&1; echo "rc $?" >>said; ' for order in orders.splitlines())
    wait = "while [ ! -e begin ]; do sleep 0.1; done; "
    user.script("task.sh", SAYS.format(orders=f"{wait}{lines}touch asked") + GO)
    job_id = user.submit(*ARRAY, *options, "task.sh")
    running = dict.fromkeys((1, 2, 3, 5, 6, 7), "RUNNING")
    user.wait_for_states(job_id, {**running, 4: "PENDING", 8: "PENDING"})
    return job_id


def let_ask(user: CsubUser) -> list[str]:
    user.run(["touch", "begin"])
    wait_until((user.home / "asked").exists, "task 6 has asked")
    return user.output("said").splitlines()


def test_a_member_cancels_tasks_of_its_pack_and_of_another(user: CsubUser) -> None:
    orders = (
        "scancel ${SLURM_ARRAY_JOB_ID}_1\n"
        "scancel ${SLURM_ARRAY_JOB_ID}_[3-4,7]\n"
        "scancel ${SLURM_ARRAY_JOB_ID}_2.batch"
    )
    job_id = submit(user, orders)
    assert let_ask(user) == ["rc 0"] * 3
    user.wait_for_states(job_id, dict.fromkeys((1, 2, 3, 4, 7), "CANCELLED"))
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert {number for number, row in rows.items() if row["state"] == "COMPLETED"} == {5, 6, 8}


def test_a_member_cancels_itself_and_others_in_one_call(user: CsubUser) -> None:
    order = "scancel $SLURM_JOB_ID ${SLURM_ARRAY_JOB_ID}_2"
    job_id = submit(user, order)
    user.run(["touch", "begin"])
    user.wait_for_states(job_id, dict.fromkeys((2, 6), "CANCELLED"))
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert {number for number, row in rows.items() if row["state"] == "CANCELLED"} == {2, 6}


def test_no_state_of_another_place_is_asked(user: CsubUser) -> None:
    order = "env -i PATH=$PATH HOME=/ SLURM_CONF=$SLURM_CONF scancel ${SLURM_ARRAY_JOB_ID}_1"
    job_id = submit(user, order)
    assert let_ask(user) == ["rc 0"]
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING", 6: "RUNNING"})
    user.run(["scancel", job_id])


def test_scontrol_and_squeue_know_other_tasks(user: CsubUser) -> None:
    orders = (
        "scontrol hold ${SLURM_ARRAY_JOB_ID}_4\n"
        "scontrol requeue ${SLURM_ARRAY_JOB_ID}_2\n"
        "scontrol -o show job ${SLURM_ARRAY_JOB_ID}_4\n"
        "squeue -h -o '%i %T' -j ${SLURM_ARRAY_JOB_ID}_3"
    )
    job_id = submit(user, orders, "--requeue")
    held, requeued, record, shown, row, last = let_ask(user)[:6]
    assert (held, requeued, shown, last) == ("rc 0",) * 4
    assert re.match(rf"JobId=\d+ ArrayJobId={job_id} ArrayTaskId=4 ", record)
    assert " JobState=PENDING Reason=JobHeldUser " in record
    assert row == f"{job_id}_3 RUNNING"
    user.wait_for_rows(job_id, lambda rows: rows[2]["starts"] == 2, "task 2 starts again")
    user.run(["touch", "go"])
    user.wait_for_states(job_id, dict.fromkeys((1, 2, 3, 5, 6, 7, 8), "COMPLETED"))
    assert user.members(job_id)[4]["state"] == "PENDING"
    user.csub("cancel", job_id)


def test_what_would_concern_the_whole_pack_is_refused(user: CsubUser) -> None:
    orders = (
        "scontrol hold $SLURM_JOB_ID\n"
        "scontrol update JobId=$SLURM_JOB_ID TimeLimit=1\n"
        "scontrol requeuehold ${SLURM_ARRAY_JOB_ID}_1\n"
        "scancel ${SLURM_ARRAY_JOB_ID}_1.0"
    )
    job_id = submit(user, orders)
    said = let_ask(user)
    assert [line for line in said if line.startswith("rc")] == ["rc 2"] * 4
    told = [line for line in said if not line.startswith("rc")]
    assert f"{job_id}/6: a running job cannot be held" in told[0]
    assert f"{job_id}/6: TimeLimit cannot be changed for a task of a pack" in told[1]
    assert "requeuehold cannot be done" in told[2]
    assert f"{job_id}_1.0 cannot be ended alone" in told[3]
    assert "Traceback" not in "".join(said)
    states = {row["state"] for row in user.members(job_id).values()}
    assert states == {"RUNNING", "PENDING"}
    user.run(["touch", "go"])
    user.finish(job_id)
