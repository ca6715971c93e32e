"""A preempted pack: its grace time, and what runs again afterwards."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm


def find_pack(user: CsubUser, job_id: str) -> Path:
    """The directory of a submission's only pack."""
    index = json.loads(user.index(job_id).read_text())
    return user.state / "packs" / f"{index['submission']}.0"


@pytest.mark.smoke
def test_preempted_members_get_term_and_start_again_after_the_requeue(user: CsubUser) -> None:
    node = user.sandbox.node_names[0]
    # Work that answers TERM with success, as after a checkpoint, but is not done.
    user.script(
        "polite.sh",
        'echo $SLURM_JOB_NAME >>ran.txt; [ -z "$SLURM_RESTART_COUNT" ] || exit 0\n'
        "trap 'echo term; exit 0' TERM; sleep 300 & wait",
    )
    user.script(
        "stubborn.sh",
        'echo $SLURM_JOB_NAME >>ran.txt; [ -z "$SLURM_RESTART_COUNT" ] || exit 0\n'
        "trap 'echo term' TERM; while :; do sleep 0.2; done",
    )
    user.script("done.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    user.script("later.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    victim = user.submit(
        "pack", "--partition=preempt", f"--nodelist={node}", "--gres=gpu:1", "-c4", "--mem=100M",
        "--time=10", "--requeue", "--degree=2", "--pack-size=4",
        "done.sh", "polite.sh", "stubborn.sh", "later.sh",
    )  # fmt: skip
    user.wait_for_states(victim, {1: "COMPLETED", 2: "RUNNING", 3: "RUNNING", 4: "PENDING"})
    user.script("urgent.sh", "until [ -e end ]; do sleep 0.1; done")
    urgent = user.submit(
        "--partition=gpu", f"--nodelist={node}", "--gres=gpu:2", "-c16", "--mem=100M",
        "--time=10", "urgent.sh",
    )  # fmt: skip
    wait_until(
        lambda: (
            "term" in user.output(f"slurm-{victim}_2.out")
            and "term" in user.output(f"slurm-{victim}_3.out")
        ),
        "TERM reaches both members",
    )
    user.wait_for_states(urgent, "RUNNING")
    # The place of polite.sh was free during the whole grace time.
    assert Counter(user.output("ran.txt").split()) == {
        "done.sh": 1, "polite.sh": 1, "stubborn.sh": 1,
    }  # fmt: skip
    rows = user.wait_for_states(victim, {1: "COMPLETED", 2: "PENDING", 3: "PENDING", 4: "PENDING"})
    assert rows[2]["exit_code"] is None
    user.script("end", "")
    rows = user.wait_for_states(victim, "COMPLETED")
    assert Counter(user.output("ran.txt").split()) == {
        "done.sh": 1, "polite.sh": 2, "stubborn.sh": 2, "later.sh": 1,
    }  # fmt: skip
    assert [row["starts"] for row in rows.values()] == [1, 2, 2, 1]
    assert (find_pack(user, victim) / "attempt").read_text() == "2\n"


def test_a_runner_that_is_killed_while_its_pack_is_preempted_changes_nothing_of_that(
    user: CsubUser,
) -> None:
    node = user.sandbox.node_names[0]
    user.script(
        "stubborn.sh",
        'echo $SLURM_JOB_NAME >>ran.txt; [ -z "$SLURM_RESTART_COUNT" ] || exit 0\n'
        "trap 'echo term' TERM; while :; do sleep 0.2; done",
    )
    victim = user.submit(
        "pack", "--partition=preempt", f"--nodelist={node}", "--gres=gpu:1", "-c4", "--mem=100M",
        "--time=10", "--requeue", "stubborn.sh", "stubborn.sh",
    )  # fmt: skip
    user.wait_for_states(victim, "RUNNING")
    user.script("urgent.sh", "until [ -e end ]; do sleep 0.1; done")
    urgent = user.submit(
        "--partition=gpu", f"--nodelist={node}", "--gres=gpu:2", "-c16", "--mem=100M",
        "--time=10", "urgent.sh",
    )  # fmt: skip
    wait_until(lambda: "term" in user.output(f"slurm-{victim}_2.out"), "the grace time has begun")
    pack = find_pack(user, victim)
    os.kill(json.loads((pack / "runner.json").read_text())["pid"], signal.SIGKILL)
    user.wait_for_states(urgent, "RUNNING")
    user.wait_for_states(victim, "PENDING")
    # Slurm has requeued it, and nobody else: it counts for nothing.
    assert list(pack.glob("killed.*")) == []
    user.script("end", "")
    rows = user.wait_for_states(victim, "COMPLETED")
    assert [row["starts"] for row in rows.values()] == [2, 2]
    assert (pack / "attempt").read_text() == "2\n"
