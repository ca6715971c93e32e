"""Counters that never go back, control groups, gaps, and who owns a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.monitor.gaps import MOST_GAPS, Gaps
from slurm_colloc.monitor.member_reading import Growing
from slurm_colloc.monitor.process_table import ProcessTable, read_stat
from slurm_colloc.monitor.step_group import StepGroup


def test_a_fall_of_a_moment_is_no_loss() -> None:
    counter = Growing()
    # A child's time is on its way to its parent.
    assert [counter.update(total) for total in (10, 4, 11, 12)] == [10, 10, 11, 12]


def test_a_fall_that_stays_is_made_up_for() -> None:
    counter = Growing()
    assert [counter.update(total) for total in (10, 4, 4, 4, 5)] == [10, 10, 10, 10, 11]


def test_what_cannot_be_read_is_null_until_it_is_known() -> None:
    counter = Growing()
    assert [counter.update(total) for total in (None, 3, None)] == [None, 3, 3]


V2 = "0::/system.slice/slurmstepd.scope/job_4711/step_2/user/task_0\n"
V1 = "4:memory:/slurm/uid_1000/job_4711/step_2/task_0\n2:cpuacct,cpu:/slurm/job_4711/step_2/task_0"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_step_of_version_2_is_the_users_part_of_it(tmp_path: Path) -> None:
    group = tmp_path / "system.slice/slurmstepd.scope/job_4711/step_2/user"
    write(group / "cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    write(group / "memory.stat", "anon 1048576\nfile 99999999\nshmem 2097152\n")
    found = StepGroup(V2, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (2.5, 3.0)


def test_a_step_of_version_1_has_one_group_for_each(tmp_path: Path) -> None:
    write(tmp_path / "cpuacct/slurm/job_4711/step_2/cpuacct.usage", "1500000000\n")
    memory = tmp_path / "memory/slurm/uid_1000/job_4711/step_2/memory.stat"
    write(memory, "rss 1\ntotal_cache 9\ntotal_rss 1048576\ntotal_shmem 0\n")
    found = StepGroup(V1, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (1.5, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n",
        "4:memory:/slurm/uid_1000/job_4711/step_extern\n",
        "0::/user.slice/session-3.scope\n",
        "",
    ],
)
def test_where_all_members_share_a_group_it_is_nobodys(text: str, tmp_path: Path) -> None:
    found = StepGroup(text, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (None, None)


def test_a_group_without_accounts_says_nothing(tmp_path: Path) -> None:
    found = StepGroup(V2, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (None, None)


def test_gaps_of_one_reason_are_one() -> None:
    gaps = Gaps()
    for at, reason in enumerate(["", "lost", "lost", "", "", "hung", "lost"]):
        gaps.note("GPU-0", float(at), reason)
    assert gaps.list_all(9.0) == [(1.0, 3.0, "lost"), (5.0, 6.0, "hung"), (6.0, 9.0, "lost")]


def test_gaps_without_end_are_counted() -> None:
    gaps = Gaps()
    for at in range(MOST_GAPS + 5):
        gaps.add(at, at + 1, "")
    assert (len(gaps.closed), gaps.left_out) == (MOST_GAPS, 5)


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_sizes_go_to_who_owns_the_process(child: Callable[..., subprocess.Popen[bytes]]) -> None:
    one, other = child("echo; exec sleep 60"), child("sleep 60 & echo; wait")
    for process in (one, other):
        assert process.stdout is not None
        process.stdout.readline()
    table = ProcessTable("/pack")
    table.add((1, 1), one.pid)
    table.add((2, 3), other.pid)
    table.look()
    (below,) = [pid for pid in table.list_pids((2, 3)) if pid != other.pid]
    assert table.share_out({one.pid: 5.0, below: 7.0, other.pid: 1.0, os.getpid(): 99.0}) == {
        (1, 1): 5.0,
        (2, 3): 8.0,
    }
    # A part that is not told leaves no sum.
    assert table.share_out({other.pid: 1.0, below: None}) == {(2, 3): None}
    table.remove((2, 3))
    table.look()
    assert table.list_pids((2, 3)) == []


def test_a_process_of_a_container_is_known_by_the_pid_it_has_there(
    child: Callable[..., subprocess.Popen[bytes]],
) -> None:
    probe = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    outer = child(
        "exec unshare --user --map-root-user --pid --fork --kill-child"
        " sh -c 'sleep 60 & echo; wait'"
    )
    assert outer.stdout is not None
    outer.stdout.readline()
    table = ProcessTable("/pack")
    table.add((4, 1), outer.pid)
    table.look()
    assert len(table.list_pids((4, 1))) == 3
    # Inside, the shell is process 1 and sleep is process 2.
    assert table.share_out({2: 6.0}) == {(4, 1): 6.0}


def test_a_process_that_is_gone_is_none(child: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = child("exit 0")
    stat = read_stat(process.pid)
    assert stat is not None
    assert stat.parent == os.getpid()
    process.wait()
    assert read_stat(process.pid) is None
