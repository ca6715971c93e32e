"""Jobs of ordinary users on a sandbox that root has started."""

from __future__ import annotations

import ast
import errno
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_processes import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.root]

RunAs = Callable[..., subprocess.CompletedProcess[str]]
Users = tuple[str, str]
# Scrubs what would change the meaning of a nested srun between releases.
OVERLAP = (
    "env -u SLURM_CPUS_PER_TASK -u SLURM_MEM_PER_NODE -u SLURM_MEM_PER_CPU "
    "srun --overlap -N1 -n1 --cpu-bind=none"
)
PYTHON = "/usr/bin/python3"


@pytest.fixture
def results(users: Users, short_directory: Path) -> Path:
    """A directory where every user may write."""
    assert users
    short_directory.chmod(0o1777)
    return short_directory


@pytest.fixture
def with_cgroups(shared_sandbox: Sandbox) -> Sandbox:
    """The sandbox, where its steps are limited by cgroups."""
    status = shared_sandbox.status()
    if not status.cgroup_version:
        pytest.skip(f"no cgroups here: {status.cgroup_reason}")
    return shared_sandbox


def submit(run_as: RunAs, user: str, sandbox: Sandbox, script: Path, *options: str) -> str:
    argv = ["sbatch", "--parsable", "-o", f"{script}.out", *options, str(script)]
    return str(run_as(user, argv, sandbox=sandbox).stdout).strip()


def write_script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def wait_for_end(run_as: RunAs, user: str, sandbox: Sandbox, job: str) -> str:
    states: list[str] = []

    def ended() -> bool:
        argv = ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]
        states.append(run_as(user, argv, sandbox=sandbox).stdout.strip())
        return states[-1] not in {"PENDING", "RUNNING", "COMPLETING"}

    assert wait_until(ended, 90, poll_s=0.1), states[-1]
    return states[-1]


@pytest.mark.smoke
def test_two_users_run_jobs_beside_each_other_under_their_own_names(
    shared_sandbox: Sandbox, users: Users, run_as: RunAs, results: Path
) -> None:
    # Each job waits for the other: they end only if both run at the same time.
    jobs = {}
    for me, other in (users, users[::-1]):
        script = write_script(
            results / f"{me}.sh",
            f"id -un > {results}/{me}\n"
            f"until [ -s {results}/{other} ]; do sleep 0.1; done\n"
            f"srun id -un > {results}/{me}.step",
        )
        jobs[me] = submit(run_as, me, shared_sandbox, script, "--gres=gpu:1", "--mem=100", "-c1")
    for user, job in jobs.items():
        assert wait_for_end(run_as, user, shared_sandbox, job) == "COMPLETED"
        step = results / f"{user}.step"
        assert step.read_text().strip() == user
        assert step.stat().st_uid == pwd.getpwnam(user).pw_uid


def test_secrets_and_logs_are_closed_to_users(
    shared_sandbox: Sandbox, users: Users, run_as: RunAs
) -> None:
    layout = shared_sandbox.layout
    for path in (layout.munge_key, layout.log / "slurmctld.log", layout.state):
        assert path.exists()
        assert run_as(users[0], ["head", "-c1", str(path)], check=False).returncode != 0
        assert run_as(users[0], ["ls", f"{path}/"], check=False).returncode != 0
    assert run_as(users[0], ["head", "-c1", str(layout.slurm_conf)]).stdout == "#"
    # Where it is and by which ids it runs: with it they reach the sandbox.
    assert run_as(users[0], ["head", "-c1", str(layout.record)]).stdout == "{"


@pytest.mark.smoke
def test_overlapping_steps_run_on_disjoint_cpus(
    shared_sandbox: Sandbox, users: Users, run_as: RunAs, results: Path, host_cpus: int
) -> None:
    if host_cpus < 2:
        pytest.skip("needs two CPUs")
    script = write_script(
        results / "job.sh",
        f"""cpus=($({PYTHON} -c 'import os; print(*sorted(os.sched_getaffinity(0)))'))
        echo "[${{cpus[0]}}, ${{cpus[1]}}]" > {results}/all
        for i in 0 1; do
          {OVERLAP} --mem=50 taskset -c ${{cpus[$i]}} {PYTHON} -c "
import os, time
open('{results}/step$i', 'w').write(repr(sorted(os.sched_getaffinity(0))))
while not all(os.path.exists('{results}/step%d' % k) for k in (0, 1)): time.sleep(0.05)
" &
        done
        wait""",
    )
    job = submit(run_as, users[0], shared_sandbox, script, "-c2", "--mem=200", "--gres=gpu:1")
    assert wait_for_end(run_as, users[0], shared_sandbox, job) == "COMPLETED"
    first, second = (ast.literal_eval((results / f"step{i}").read_text()) for i in (0, 1))
    assert len(first) == len(second) == 1
    assert sorted(first + second) == ast.literal_eval((results / "all").read_text())


def test_a_step_over_its_memory_is_killed_and_its_neighbour_is_not(
    with_cgroups: Sandbox, users: Users, run_as: RunAs, results: Path
) -> None:
    script = write_script(
        results / "job.sh",
        f"""
        {OVERLAP} --mem=60 {PYTHON} -c 'x = bytearray(200 << 20); print(len(x))' &
        greedy=$!
        {OVERLAP} --mem=60 {PYTHON} -c 'import time; x = bytearray(20 << 20); time.sleep(1)' &
        modest=$!
        wait $greedy; echo $? > {results}/greedy
        wait $modest; echo $? > {results}/modest""",
    )
    job = submit(run_as, users[0], with_cgroups, script, "--mem=400")
    wait_for_end(run_as, users[0], with_cgroups, job)
    assert (results / "greedy").read_text().strip() != "0"
    assert (results / "modest").read_text().strip() == "0"


@pytest.mark.smoke
def test_a_job_may_open_its_own_gpu_and_no_other(
    with_cgroups: Sandbox, users: Users, run_as: RunAs, results: Path
) -> None:
    code = f"""
import os
for number in range(2):
    try:
        os.open('{with_cgroups.layout.dev}/gpu%d' % number, os.O_RDONLY)
        print(0)
    except OSError as error:
        print(error.errno)
"""
    script = write_script(results / "job.sh", f'srun {PYTHON} -c "{code}"')
    node = with_cgroups.node_names[0]
    job = submit(run_as, users[0], with_cgroups, script, "--gres=gpu:1", "-w", node, "--mem=50")
    assert wait_for_end(run_as, users[0], with_cgroups, job) == "COMPLETED"
    found = [int(line) for line in Path(f"{script}.out").read_text().split()]
    assert errno.EPERM in found, "the device of the GPU that was not asked for is denied"
    # No driver answers for a fake GPU: opening it is allowed, and fails for that reason.
    assert len([number for number in found if number not in {errno.EPERM, errno.EACCES}]) == 1


def test_a_job_of_the_higher_partition_requeues_one_of_the_lower(
    shared_sandbox: Sandbox, users: Users, run_as: RunAs, results: Path
) -> None:
    node = shared_sandbox.node_names[0]
    go = results / "go"
    low = write_script(
        results / "low.sh",
        f"echo $SLURM_RESTART_COUNT >> {results}/starts; until [ -e {go} ]; do sleep 0.1; done",
    )
    high = write_script(results / "high.sh", "true")
    options = ("-w", node, "--gres=gpu:2", "--mem=50")
    lower = submit(run_as, users[0], shared_sandbox, low, "-p", "preempt", "--requeue", *options)
    assert wait_until((results / "starts").exists, 30)
    upper = submit(run_as, users[1], shared_sandbox, high, *options)
    assert wait_for_end(run_as, users[1], shared_sandbox, upper) == "COMPLETED"
    go.touch()
    assert wait_for_end(run_as, users[0], shared_sandbox, lower) == "COMPLETED"
    # Slurm may give the lower one its place back, and take it again, before the higher one starts.
    counts = (results / "starts").read_text().split()
    assert counts, "only a second start has a count"
    assert counts == [str(number) for number in range(1, len(counts) + 1)]


def test_an_array_may_have_a_task_number_of_ten_thousand(
    shared_sandbox: Sandbox, users: Users, run_as: RunAs, results: Path
) -> None:
    script = write_script(results / "job.sh", "true")
    job = submit(run_as, users[0], shared_sandbox, script, "--array=10000-10001", "--mem=50")
    assert wait_for_end(run_as, users[0], shared_sandbox, f"{job}_10001") == "COMPLETED"
