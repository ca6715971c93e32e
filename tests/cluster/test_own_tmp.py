"""A /tmp of their own for members of one pack, with sbatch on the same Slurm as the control."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import OPTIONS as OPTIONS_MPS
from .mps import explained, kill, runner_pid, submit_pack

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--degree=3", "--array=0-2")


@pytest.fixture(scope="module")
def contained() -> Iterator[Sandbox]:
    """A node on which Slurm gives each job a /tmp of its own."""
    if os.geteuid() != 0:
        pytest.skip("job_container/tmpfs needs a slurmd of root's")
    base = Path(tempfile.mkdtemp(prefix="jc", dir="/var/tmp"))
    base.chmod(0o755)
    (base / "l").mkdir()
    # As sites do: the prolog makes the job's directory, the task prolog names it.
    prolog, task_prolog = base / "prolog", base / "task_prolog"
    make = f"mkdir -m 700 {base}/l/$SLURM_JOB_ID && chown $SLURM_JOB_UID {base}/l/$SLURM_JOB_ID"
    prolog.write_text(f"#!/bin/sh\n{make}\n")
    task_prolog.write_text(f"#!/bin/sh\necho export SLURM_TMPDIR={base}/l/$SLURM_JOB_ID\n")
    prolog.chmod(0o755)
    task_prolog.chmod(0o755)
    try:
        with running_sandbox(
            nodes=1,
            gpus_per_node=2,
            cpus_per_node=16,
            files={"job_container.conf": f"AutoBasePath=true\nBasePath={base}/c\n"},
            extra_conf=(
                "JobContainerType=job_container/tmpfs",
                f"Prolog={prolog}",
                f"TaskProlog={task_prolog}",
            ),
        ) as sandbox:
            yield sandbox
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def inside(contained: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of that node."""
    with user_of(contained, accounts[0]) as somebody:
        yield somebody


def finish_both(user: CsubUser, body: str, *options: str) -> tuple[list[str], list[str]]:
    """What three tasks have written into `m_TASK` under sbatch and in a pack of csub's."""
    user.script("t.sh", body)
    found = []
    sbatch = ["sbatch", "--wait", "--gres=gpu:1", "--time=5", "--array=0-2", "t.sh"]
    for argv in (sbatch, ["csub", *OPTIONS, *options, "--wait", "t.sh"]):
        # Under sbatch two of them run at the same time, on the node's two GPUs.
        user.run(argv, check=False)
        found.append([user.output(f"m_{task}").strip() for task in range(3)])
        for task in range(3):
            (user.home / f"m_{task}").unlink(missing_ok=True)
    return found[0], found[1]


TRAP = """
W=/tmp/$USER/run; trap 'rm -rf /tmp/$USER' EXIT; mkdir -p $W; echo $SLURM_ARRAY_TASK_ID >$W/c
sleep $((1 + SLURM_ARRAY_TASK_ID)); cp $W/c m_$SLURM_ARRAY_TASK_ID
"""
LOCK = """
exec 9>/tmp/x_$USER.lock; flock -n 9 || exit 0
sleep 2; echo trained >m_$SLURM_ARRAY_TASK_ID
"""
FIXED = """
rm -rf /tmp/data; mkdir /tmp/data; echo $SLURM_ARRAY_TASK_ID >/tmp/data/fold; sleep 2
cat /tmp/data/fold >m_$SLURM_ARRAY_TASK_ID; echo $TMPDIR $(stat -c %a /tmp) >>m_$SLURM_ARRAY_TASK_ID
"""


@pytest.mark.parametrize(
    ("body", "shown"),
    [(TRAP, "{}"), (LOCK, "trained"), (FIXED, "{}\n/tmp 700")],
    ids=["trap", "lock", "fixed"],
)
def test_members_are_as_apart_as_jobs_under_job_container(
    inside: CsubUser, body: str, shown: str
) -> None:
    alone, packed = finish_both(inside, body)
    assert alone == [shown.format(task) for task in range(3)]
    assert packed == alone
    # --private-tmp=never is what members had before: the three are in one job, with one /tmp.
    # A lock in /tmp keeps them alone, unless that is accepted.
    shared = ("--private-tmp=never", "--accept=tmp-lock")
    assert finish_both(inside, body, *shared)[1] != alone


@pytest.mark.parametrize("body", [TRAP, LOCK], ids=["trap", "lock"])
def test_private_tmp_where_slurm_gives_none(user: CsubUser, body: str) -> None:
    mine = finish_both(user, body, "--private-tmp")[1]
    assert mine == (["trained"] * 3 if "trained" in body else ["0", "1", "2"])
    assert finish_both(user, body, "--accept=tmp-lock")[1] != mine


def test_absolute_paths_lead_to_csubs_commands(user: CsubUser) -> None:
    user.script(
        "t.sh",
        "cat >own.py <<'E'\nimport os, subprocess, time\n"
        "if os.environ['SLURM_ARRAY_TASK_ID'] == '1':\n"
        f"    subprocess.run(['env', '-i', '{user.find('scancel')}', os.environ['SLURM_JOB_ID']])\n"
        "    time.sleep(60)\nE\n"
        "python3 own.py; sleep 2; env -i SLURM_CONF=$SLURM_CONF "
        f"{user.find('squeue')} -h -o %i -j $SLURM_JOB_ID >m_$SLURM_ARRAY_TASK_ID",
    )
    job_id = user.submit(*OPTIONS, "--private-tmp", "t.sh")
    rows = user.finish(job_id)
    assert [rows[n]["state"] for n in range(3)] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert user.output("m_0").split() == [f"{job_id}_0"]


def test_steps_shell_and_commands_are_inside(user: CsubUser) -> None:
    user.script(
        "t.sh",
        "echo $SLURM_ARRAY_TASK_ID >/tmp/own; mkdir /tmp/w; cd /tmp/w\n"
        "exec 3>$OLDPWD/s_$SLURM_ARRAY_TASK_ID; srun cat ../own >&3\n"
        "srun -n 2 sh -c 'echo $(pwd) $(cat /tmp/own)' >&3 2>&1\n"
        "cd $OLDPWD; touch up_$SLURM_ARRAY_TASK_ID; while [ ! -e go ]; do sleep 0.1; done\n",
    )
    job_id = user.submit(*OPTIONS, "--private-tmp", "t.sh")
    wait_until(lambda: all(user.output(f"s_{n}").count("/tmp/w") == 2 for n in range(3)), "steps")
    wait_until((user.home / "up_1").exists, "the second is up")
    shown = user.csub("shell", f"{job_id}/1", "--", "cat", "/tmp/own").stdout
    assert shown.split() == ["1"]
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert [user.output(f"s_{n}").split() for n in range(3)] == [
        [str(n), "/tmp/w", str(n), "/tmp/w", str(n)] for n in range(3)
    ]


DIRECTORY = """
cd $SLURM_TMPDIR; echo $SLURM_ARRAY_TASK_ID >c; sleep 2; to=$SLURM_SUBMIT_DIR/m_$SLURM_ARRAY_TASK_ID
cat c >$to; cat ${SLURM_TMPDIR%/*}/$SLURM_JOB_ID/c >>$to
"""


def test_directories_with_the_jobs_id(inside: CsubUser) -> None:
    folder = inside.run(["srun", "sh", "-c", "echo ${SLURM_TMPDIR%/*}"]).stdout.strip()
    inside.csub("config", "own_directories", f"{folder}/%j")
    alone, packed = finish_both(inside, DIRECTORY, "--private-tmp=never")
    assert alone == [f"{task}\n{task}" for task in range(3)]
    assert packed != alone
    assert finish_both(inside, DIRECTORY)[1] == alone


def test_signals_limits_and_requeue_reach_a_member_inside(user: CsubUser) -> None:
    user.script(
        "t.sh",
        'touch /tmp/mine; [ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'
        "trap 'echo saved >m_$SLURM_ARRAY_TASK_ID; exit 0' TERM\n"
        "[ $SLURM_ARRAY_TASK_ID = 0 ] && /usr/bin/env -i PATH=/usr/bin:/bin scontrol requeue "
        "$SLURM_JOB_ID\ntouch up_$SLURM_ARRAY_TASK_ID; while :; do sleep 0.1; done",
    )
    # The system gives the id of a user that is gone to a new one.
    before = list_leftovers(user)
    job_id = user.submit(*OPTIONS, "--private-tmp", "--requeue", "t.sh")
    rows = user.wait_for_states(job_id, {0: "COMPLETED", 1: "RUNNING", 2: "RUNNING"})
    assert [rows[n]["starts"] for n in range(3)] == [2, 1, 1]
    wait_until(lambda: all((user.home / f"up_{n}").exists() for n in (1, 2)), "both are up")
    user.csub("cancel", f"{job_id}_1")
    rows = user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    assert (user.output("m_1"), user.output("m_2")) == ("saved\n", "")
    user.csub("cancel", job_id)
    user.finish(job_id)
    assert user.output("m_2") == "saved\n"
    assert list_leftovers(user) == before


def list_leftovers(user: CsubUser) -> list[Path]:
    """What members of this user have below /tmp."""
    return [
        path
        for path in sorted(Path("/tmp").glob("cs*"))
        if re.fullmatch("cs[0-9a-f]{6}", path.name) and path.stat().st_uid == user.uid
    ]


def list_mounts(user: CsubUser, own: list[Path]) -> list[str]:
    """Mounts of members that are seen outside: other tests have some of their own meanwhile."""
    names = [*map(str, own), str(user.home)]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(name in line for name in names)]


def test_nothing_stays_after_a_killed_runner(user: CsubUser) -> None:
    user.script("t.sh", "touch /tmp/mine up_$SLURM_ARRAY_TASK_ID; sleep 300")
    before = list_leftovers(user)
    job_id = user.submit(*OPTIONS, "--private-tmp", "--no-requeue", "t.sh")
    wait_until(lambda: all((user.home / f"up_{n}").exists() for n in range(3)), "all are up")
    own = [path for path in list_leftovers(user) if path not in before]
    assert len(own) == 3
    assert list_mounts(user, own) == []
    kill(runner_pid(user, job_id))
    user.csub("cancel", job_id)
    user.finish(job_id)
    wait_until(lambda: list_leftovers(user) == before, "its directories are gone")
    assert list_mounts(user, own) == []


def test_a_script_with_setuid_programs_is_told_and_runs_without(user: CsubUser) -> None:
    user.script("t.sh", "true || sudo ls; touch /tmp/there.$USER; sleep 2")
    job_id = user.submit("--output=out", "--private-tmp", *OPTIONS, "t.sh")
    user.wait_for_states(job_id, "RUNNING")
    said = "it shares /tmp with its neighbours: its script runs sudo, which does not work in a user"
    assert said in user.csub("why", f"{job_id}_1").stdout
    assert f"member 1 {said[3:]}" in user.csub("show", job_id).stdout
    user.finish(job_id)
    assert [said in path.read_text() for path in user.home.glob("out*")] == [True] * 3
    Path(f"/tmp/there.{user.name}").unlink()


def test_limits_and_attribution_hold_inside(mps_user: CsubUser) -> None:
    user = mps_user
    want = 'rm -rf /tmp/* 2>rm_$2; simgpu run --seconds 2 --gpu-memory "$1"'
    user.script("want.sh", want)
    job_id = submit_pack(
        user,
        "want.sh 1G a",
        "want.sh 3G b",
        options=(*OPTIONS_MPS, "--gpu-mem=2G", "--private-tmp"),
    )
    with explained(user, job_id):
        rows = user.wait_for_rows(job_id, lambda rows: rows[2]["starts"] == 2, "b again")
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert [(rows[n]["mode"], rows[n]["starts"]) for n in (1, 2)] == [("mps", 1), ("mps", 2)]
        assert "Device or resource busy" in user.output("rm_a")
