"""Members on a real Slurm: CPUs, how they end, order and number, who sees what."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

MEET = 'touch "up.$1"; while [ $(ls up.* | wc -l) -lt %d ]; do sleep 0.1; done\n'
"""Wait until so many members of the pack are running; the first argument tells them apart."""


def read_spans(user: CsubUser, pattern: str) -> list[tuple[float, float]]:
    """Start and end that scripts wrote, one line each with both."""
    spans = []
    for path in user.home.glob(pattern):
        start, end = (float(word) for word in path.read_text().split())
        spans.append((start, end))
    return spans


def count_together(spans: list[tuple[float, float]]) -> int:
    """The largest number of spans that overlap at one moment."""
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


def slurm_exit_code(user: CsubUser, job_id: str) -> str:
    """As Slurm keeps it, once the job is over for Slurm too: its members end a moment earlier."""
    shown = ""

    def ended() -> bool:
        nonlocal shown
        shown = user.run(["scontrol", "-o", "show", "job", job_id]).stdout
        return re.search(r" JobState=(RUNNING|COMPLETING) ", shown) is None

    wait_until(ended, "the job ends")
    match = re.search(r" ExitCode=(\S+)", shown)
    assert match, shown
    return match[1]


# -- CPUs ---------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_members_have_disjoint_cpu_sets_of_their_own(honest_user: CsubUser) -> None:
    user = honest_user
    body = MEET % 2 + (
        "grep Cpus_allowed_list /proc/self/status; nproc; "
        "echo $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_NTASKS; "
        "srun grep Cpus_allowed_list /proc/self/status"
    )
    user.script("cpu.sh", body)
    job_id = user.submit("pack", "--gres=gpu:1", "-c1", "--mem=100M", "cpu.sh 1", "cpu.sh 2")
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2, user.describe(job_id)
    cpus = []
    for number in (1, 2):
        own, nproc, variables, inner = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        assert own == inner
        assert nproc == "1"
        assert variables.split() == ["1", "1", "1"]
        cpus.append(int(own.split()[1]))
        assert rows[number]["cpus"] == [cpus[-1]]
    assert len(set(cpus)) == 2


def test_the_members_cpu_count_is_its_own_and_not_the_packs(user: CsubUser) -> None:
    user.script("count.sh", "echo $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $OMP_NUM_THREADS")
    user.script(
        "more.sh", "echo $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE", directives="#SBATCH -c3"
    )
    job_id = user.submit("pack", "--gres=gpu:1", "count.sh", "more.sh")
    user.finish(job_id)
    assert user.output(f"slurm-{job_id}_1.out") == "1 1\n"
    assert user.output(f"slurm-{job_id}_2.out") == "3 3\n"


# -- how they end -------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_ways_to_end_are_kept_apart_and_leave_neighbours_alone(user: CsubUser) -> None:
    user.script("ok.sh", "sleep 3; exit 0")
    user.script("three.sh", "exit 3")
    user.script("killed.sh", "kill -9 $$")
    user.script("eats.sh", 'exec python3 -c "b = []\nwhile True: b.append(bytearray(10 ** 7))"')
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--mem=100M", "ok.sh", "three.sh", "killed.sh", "eats.sh"
    )
    waited = user.run(["csub", "wait", job_id], check=False)
    rows = user.members(job_id)
    assert {number: row["state"] for number, row in rows.items()} == {
        1: "COMPLETED",
        2: "FAILED",
        3: "FAILED",
        4: "OUT_OF_MEMORY",
    }, user.describe(job_id)
    assert [row["exit_code"] for row in rows.values()] == [
        {"code": 0, "signal": 0},
        {"code": 3, "signal": 0},
        {"code": 0, "signal": 9},
        {"code": 0, "signal": 9},
    ]
    assert {row["starts"] for row in rows.values()} == {1}
    assert waited.returncode == 137
    assert slurm_exit_code(user, job_id) == "137:0"
    statuses = [
        user.run(["csub", "wait", f"{job_id}/{number}"], check=False).returncode
        for number in (1, 2, 3, 4)
    ]
    assert statuses == [0, 3, 137, 137]


def test_a_child_that_is_killed_for_memory_is_told_from_a_failure(user: CsubUser) -> None:
    user.script("eats.sh", "python3 -c \"b = bytearray(3 * 10 ** 8); print('fits')\"; exit 5")
    user.script("ok.sh", "sleep 1")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=100M", "eats.sh", "ok.sh")
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["OUT_OF_MEMORY", "COMPLETED"]
    assert rows[1]["exit_code"] == {"code": 5, "signal": 0}


@pytest.mark.smoke
def test_the_packs_exit_code_is_the_worst_one_of_its_members(user: CsubUser) -> None:
    user.script("exit.sh", "exit $1")
    job_id = user.submit("pack", "--gres=gpu:1", "exit.sh 0", "exit.sh 4", "exit.sh 2")
    assert user.run(["csub", "wait", job_id], check=False).returncode == 4
    assert slurm_exit_code(user, job_id) == "4:0"


def test_a_lone_script_that_dies_of_a_signal_looks_in_slurm_as_with_sbatch(user: CsubUser) -> None:
    user.script("killed.sh", "kill -9 $$")
    theirs = user.run(["sbatch", "--parsable", "killed.sh"]).stdout.strip()
    ours = user.submit("killed.sh")
    user.finish(ours)
    wait_until(
        lambda: "JobState=FAILED" in user.run(["scontrol", "-o", "show", "job", theirs]).stdout,
        "sbatch's job has failed",
    )
    assert slurm_exit_code(user, ours) == slurm_exit_code(user, theirs) == "0:9"


@pytest.mark.smoke
def test_what_a_script_leaves_in_the_background_ends_with_it(user: CsubUser) -> None:
    body = """
sleep 600 & echo $!
setsid sleep 601 & echo $!
(trap '' TERM; setsid sleep 602 & echo $!)
exit 0
"""
    user.script("leaves.sh", body)
    user.script("stays.sh", "until [ -e seen ]; do sleep 0.1; done")
    job_id = user.submit("pack", "--gres=gpu:1", "leaves.sh", "stays.sh")
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
    pids = [int(line) for line in user.output(f"slurm-{job_id}_1.out").split()]
    assert len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    (user.home / "seen").touch()
    assert user.finish(job_id)[2]["state"] == "COMPLETED"


def test_a_script_starts_with_the_signals_and_limits_that_sbatch_gives_it(user: CsubUser) -> None:
    user.script("look.sh", "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ulimit -Sn; ulimit -Ss")
    user.run(["sbatch", "-o", "sbatch.out", "look.sh"])
    lone = user.submit("look.sh")
    job_id = user.submit("pack", "--gres=gpu:1", "look.sh", "look.sh")
    user.finish(lone)
    user.finish(job_id)
    wait_until(lambda: user.output("sbatch.out").count("\n") == 5, "sbatch's job has run")
    for name in (f"slurm-{lone}.out", f"slurm-{job_id}_1.out"):
        assert user.output(name) == user.output("sbatch.out")


# -- order and number ---------------------------------------------------------------------------

SPAN = 'start=$(date +%s.%N); sleep 0.7; echo "$start $(date +%s.%N)" > "span.$1"\n'


@pytest.mark.smoke
def test_members_above_the_degree_wait_and_refill_places(user: CsubUser) -> None:
    user.script("span.sh", SPAN)
    words = [f"span.sh {number}" for number in range(6)]
    job_id = user.submit("pack", "--gres=gpu:1", "--degree=2", "--pack-size=6", *words)
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 6
    assert {row["slurm_job_id"] for row in rows.values()} == {job_id}
    spans = read_spans(user, "span.*[0-9]")
    assert len(spans) == 6
    assert count_together(spans) == 2


def test_an_array_never_runs_more_members_than_its_limit(user: CsubUser) -> None:
    user.script("span.sh", SPAN.replace("$1", "$SLURM_ARRAY_TASK_ID"))
    job_id = user.submit("--array=0-7%2", "--gres=gpu:1", "span.sh")
    rows = user.finish(job_id)
    assert sorted(rows) == list(range(8))
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    spans = read_spans(user, "span.*[0-9]")
    assert len(spans) == 8
    assert count_together(spans) == 2


def test_sixty_four_members_in_one_pack(accounts: tuple[str, ...]) -> None:
    with (
        running_sandbox(
            nodes=1, gpus_per_node=1, cpus_per_node=64, host_memory_mb_per_node=64000
        ) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        user.script("one.sh", "sleep 1; echo $SLURM_ARRAY_TASK_ID")
        # An MPS server takes 48.
        words = ("--array=0-63", "--degree=64", "--share=timeslice", "--gres=gpu:1", "--mem=64M")
        job_id = user.submit(*words, "one.sh")
        rows = user.finish(job_id, patience_s=120)
        assert sorted(rows) == list(range(64))
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}, user.describe(job_id)
        assert {row["slurm_job_id"] for row in rows.values()} == {job_id}
        assert {row["degree"] for row in rows.values()} == {64}
        for number in range(64):
            assert user.output(f"slurm-{job_id}_{number}.out") == f"{number}\n"


# -- users --------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_two_users_at_once_see_only_their_own(user: CsubUser, other_user: CsubUser) -> None:
    jobs = {}
    for somebody in (user, other_user):
        somebody.script("mine.sh", 'echo "secret of $USER"; while [ ! -e go ]; do sleep 0.2; done')
        jobs[somebody.name] = somebody.submit("pack", "--gres=gpu:1", "mine.sh", "mine.sh")
    for somebody in (user, other_user):
        somebody.wait_for_states(jobs[somebody.name], "RUNNING")
        shown = json.loads(somebody.csub("queue", "--json").stdout)
        job_id = jobs[somebody.name]
        assert [row["member"] for row in shown] == [f"{job_id}/1", f"{job_id}/2"]
    strange = user.csub("show", jobs[other_user.name], check=False)
    assert strange.returncode == 7
    assert "Traceback" not in strange.stderr
    refused = user.csub("cancel", jobs[other_user.name], check=False)
    assert refused.returncode == 7
    # The home may be open to all; the state in it is not.
    other_user.run(["chmod", "755", str(other_user.home)])
    for path in (other_user.state, *other_user.state.rglob("*")):
        found = user.run(["stat", str(path / "x" if path.is_dir() else path)], check=False)
        assert found.returncode != 0, path
        assert "Permission denied" in found.stderr
    for somebody in (user, other_user):
        somebody.run(["touch", "go"])
        states = {row["state"] for row in somebody.finish(jobs[somebody.name]).values()}
        assert states == {"COMPLETED"}
