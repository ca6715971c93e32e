"""csub --local: packs as processes of this machine, with no Slurm anywhere in sight."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ..bed import CsubUser, can_reach_checkout
from ..wait_until import wait_until


class NoSlurm:
    """Stands for a cluster where there is none."""

    def env(self, _environ: Mapping[str, str] | None = None) -> dict[str, str]:
        return {}


@pytest.fixture
def workstation(accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of a machine whose PATH has no Slurm."""
    home = Path(tempfile.mkdtemp(prefix="home", dir="/var/tmp"))
    tools = home / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "cat", "date", "env", "sleep", "touch", "wc"):
        program = shutil.which(name)
        assert program is not None
        (tools / name).symlink_to(program)
    uid, gid, name = os.geteuid(), os.getegid(), accounts[0]
    if uid == 0 and can_reach_checkout(name):
        entry = pwd.getpwnam(name)
        uid, gid = entry.pw_uid, entry.pw_gid
        os.chown(home, uid, gid)
    else:
        name = pwd.getpwuid(uid).pw_name
    user = CsubUser(name, uid, gid, home, cast("Any", NoSlurm()))
    user.extra["PATH"] = f"{Path(sys.executable).parent}:{tools}"
    try:
        yield user
    finally:
        for path in user.state.glob("packs/*/runner.json"):
            end_runner(path)
        wait_until(
            lambda: not any(map(is_running, user.state.glob("packs/*/runner.json"))),
            "the runners end",
        )
        shutil.rmtree(home, ignore_errors=True)


def is_running(record: Path) -> bool:
    """The runner that wrote this file is alive."""
    try:
        pid = json.loads(record.read_text())["pid"]
        return os.fsencode(record.parent) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def end_runner(record: Path) -> None:
    if is_running(record):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


def runner_of(user: CsubUser, job_id: str) -> int:
    index = json.loads(user.index(job_id).read_text())
    path = user.state / "packs" / f"{index['submission']}.0" / "runner.json"
    return int(json.loads(path.read_text())["pid"])


def submit_pack(user: CsubUser, *words: str) -> str:
    return user.submit("pack", "--local", "--gres=gpu:1", *words)


def states_of(rows: dict[int, dict[str, Any]]) -> dict[int, str]:
    return {number: row["state"] for number, row in rows.items()}


def test_a_pack_runs_without_slurm_and_says_how_each_member_ended(workstation: CsubUser) -> None:
    user = workstation
    user.script("a.sh", "echo one; exit 0")
    user.script("b.sh", "echo two >&2; exit 3")
    user.script("c.sh", "kill -9 $$")
    answer = user.csub("pack", "--local", "--gres=gpu:1", "a.sh", "b.sh", "c.sh")
    assert answer.stdout == "Submitted batch job L1\n"
    assert answer.stderr == "csub: members L1/1-L1/3 in 1 pack, mps or timeslice\n"
    assert user.csub("wait", "L1", check=False).returncode == 128 + 9
    rows = user.members("L1")
    assert states_of(rows) == {1: "COMPLETED", 2: "FAILED", 3: "FAILED"}
    assert [row["exit_code"] for row in rows.values()] == [
        {"code": 0, "signal": 0},
        {"code": 3, "signal": 0},
        {"code": 0, "signal": 9},
    ]
    assert user.output("slurm-L1_1.out") == "one\n"
    assert user.csub("logs", "L1/2").stdout == "two\n"
    assert [user.csub("wait", f"L1/{n}", check=False).returncode for n in (1, 2, 3)] == [0, 3, 137]
    told = [user.csub("wait", words, check=False).stderr for words in ("L1/1", "L1/2", "L1")]
    assert told == [
        "",
        "csub: exit status 3 is that of L1/2, FAILED\n",
        "csub: exit status 137 is that of L1/3, FAILED; 1 more did not complete\n",
    ]
    assert user.csub("wait", "L7", check=False).stderr.startswith("csub: error: ")
    assert "L1/1" not in user.csub("queue").stdout
    assert "L1/1" in user.csub("queue", "--all").stdout
    assert "FAILED" in user.csub("show", "L1/2").stdout


def test_one_script_runs_alone_with_its_arguments_and_environment(workstation: CsubUser) -> None:
    user = workstation
    user.extra["MINE"] = "a b"
    user.script("a.sh", 'echo "$1|$2|$MINE|$SLURM_JOB_NAME"')
    assert user.csub("--local", "-J", "named", "a.sh", "x y", "z").stderr == (
        "csub: member L1/1 in 1 pack, exclusive\n"
    )
    assert user.csub("wait", "L1").returncode == 0
    assert user.output("slurm-L1.out") == "x y|z|a b|named\n"


def test_tasks_of_an_array_keep_their_numbers_and_the_degree_holds(workstation: CsubUser) -> None:
    user = workstation
    user.script(
        "task.sh",
        "touch on.$SLURM_ARRAY_TASK_ID; sleep 0.3; set -- on.*; echo $#; sleep 0.3\n"
        "mv on.$SLURM_ARRAY_TASK_ID off.$SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID",
    )
    (user.home / "tools" / "mv").symlink_to(str(shutil.which("mv")))
    job_id = user.submit(
        "--local", "--gres=gpu:1", "--array=3-6", "--degree=2", "--pack-size=4", "task.sh"
    )
    rows = user.finish(job_id)
    assert {number: row["exit_code"]["code"] for number, row in rows.items()} == {
        3: 3, 4: 4, 5: 5, 6: 6,
    }  # fmt: skip
    together = [int(user.output(f"slurm-{job_id}_{number}.out")) for number in rows]
    assert max(together) == 2


def test_cancelling_one_member_leaves_the_others_and_then_all_can_be(
    workstation: CsubUser,
) -> None:
    user = workstation
    for name in ("a.sh", "b.sh", "c.sh"):
        user.script(name, "echo $SLURM_JOB_NAME >>ran.txt; sleep 300")
    job_id = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "c.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    user.csub("cancel", f"{job_id}/1")
    rows = user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING", 3: "RUNNING"})
    assert rows[1]["exit_code"] == {"code": 0, "signal": 15}
    runner = runner_of(user, job_id)
    user.csub("cancel", job_id)
    assert set(states_of(user.finish(job_id)).values()) == {"CANCELLED"}
    wait_until(lambda: not Path(f"/proc/{runner}").exists(), "the runner ends")
    assert user.csub("cancel", job_id).stderr.endswith("already ended\n")


def test_packs_wait_for_the_machine_one_after_the_other(workstation: CsubUser) -> None:
    user = workstation
    user.script("a.sh", "until [ -e end ]; do sleep 0.1; done")
    first = submit_pack(user, "a.sh", "a.sh")
    user.wait_for_states(first, "RUNNING")
    second = submit_pack(user, "a.sh", "a.sh")
    user.wait_for_states(second, "PENDING")
    shown = user.csub("queue").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [
        f"{first}/1", f"{first}/2", f"{second}/1", f"{second}/2",
    ]  # fmt: skip
    user.script("end", "")
    user.wait_for_states(second, "COMPLETED")
    started = min(row["started_at"] for row in user.members(second).values())
    ended = max(row["ended_at"] for row in user.members(first).values())
    assert ended <= started


def test_a_pack_that_waits_for_the_machine_can_be_cancelled(workstation: CsubUser) -> None:
    user = workstation
    user.script("a.sh", "sleep 300")
    first = submit_pack(user, "a.sh", "a.sh")
    user.wait_for_states(first, "RUNNING")
    second = submit_pack(user, "a.sh", "a.sh")
    third = submit_pack(user, "a.sh", "a.sh")
    user.csub("cancel", f"{second}/1")
    user.wait_for_states(second, {1: "CANCELLED", 2: "PENDING"})
    user.csub("cancel", third)
    user.wait_for_states(third, "CANCELLED")
    assert set(states_of(user.members(first)).values()) == {"RUNNING"}
    user.csub("cancel", first)
    user.wait_for_states(second, {1: "CANCELLED", 2: "RUNNING"})
    user.csub("cancel", second)
    user.wait_for_states(second, "CANCELLED")


def test_each_visible_gpu_holds_one_pack(workstation: CsubUser) -> None:
    user = workstation
    user.extra["CUDA_VISIBLE_DEVICES"] = "5,7"
    user.script("a.sh", "echo $CUDA_VISIBLE_DEVICES; until [ -e end ]; do sleep 0.1; done")
    jobs = [submit_pack(user, "a.sh", "a.sh") for _ in range(2)]
    for job_id in jobs:
        user.wait_for_states(job_id, "RUNNING")
    third = submit_pack(user, "a.sh", "a.sh")
    user.wait_for_states(third, "PENDING")
    seen = {job_id: {user.output(f"slurm-{job_id}_{n}.out") for n in (1, 2)} for job_id in jobs}
    assert sorted(map(sorted, seen.values())) == [["5\n"], ["7\n"]]
    assert {tuple(row["slurm_gpu_indices"]) for row in user.members(jobs[0]).values()} <= {
        ("5",), ("7",),
    }  # fmt: skip
    user.script("end", "")
    user.wait_for_states(third, "COMPLETED")


def test_logs_follow_a_member_to_its_end(workstation: CsubUser) -> None:
    user = workstation
    user.script("a.sh", "echo first; until [ -e end ]; do sleep 0.1; done; echo last")
    job_id = submit_pack(user, "a.sh", "a.sh")
    user.wait_for_states(job_id, "RUNNING")
    following = user.start(["csub", "logs", "-f", f"{job_id}/1"])
    assert following.stdout is not None
    assert following.stdout.readline() == "first\n"
    user.script("end", "")
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out, err) == (0, "last\n", "")


def test_members_of_a_killed_runner_end_and_are_lost_and_the_machine_is_free(
    workstation: CsubUser,
) -> None:
    user = workstation
    user.script("a.sh", "exit 3")
    user.script("b.sh", "echo $$ >pid; sleep 300")
    job_id = submit_pack(user, "--degree=1", "--pack-size=3", "a.sh", "b.sh", "b.sh")
    user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING", 3: "PENDING"})
    script = int(user.output("pid"))
    os.kill(runner_of(user, job_id), signal.SIGKILL)
    rows = user.wait_for_states(job_id, {1: "FAILED", 2: "LOST", 3: "LOST"})
    assert rows[1]["exit_code"] == {"code": 3, "signal": 0}
    wait_until(lambda: not Path(f"/proc/{script}").exists(), "the member ends with its runner")
    assert user.csub("wait", job_id, check=False).returncode == 3
    user.script("c.sh", "exit 0")
    assert states_of(user.finish(submit_pack(user, "c.sh", "c.sh"))) == {
        1: "COMPLETED", 2: "COMPLETED",
    }  # fmt: skip


def test_a_runner_that_is_terminated_cancels_its_members(workstation: CsubUser) -> None:
    user = workstation
    user.script("a.sh", "trap 'echo term; exit 0' TERM; echo up; sleep 300 & wait")
    job_id = submit_pack(user, "--degree=1", "--pack-size=2", "a.sh", "a.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    wait_until(lambda: user.output(f"slurm-{job_id}_1.out") == "up\n", "the trap is set")
    os.kill(runner_of(user, job_id), signal.SIGTERM)
    user.wait_for_states(job_id, "CANCELLED")
    assert user.output(f"slurm-{job_id}_1.out") == "up\nterm\n"
