"""Counters that never go back, control groups, gaps, and who owns a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.monitor import member_reading
from slurm_colloc.monitor.member_reading import (
    Growing,
    ProcessTable,
    StepGroup,
    read_inner_pid,
    read_stat,
)
from slurm_colloc.monitor.sampling_loop import MOST_GAPS, Gaps


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
V2_SLUID = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n"
V1 = "4:memory:/slurm/uid_1000/job_4711/step_2/task_0\n2:cpuacct,cpu:/slurm/job_4711/step_2/task_0"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_accounts(text: str, root: Path) -> None:
    """Give every directory on the way of a process's groups an account that could be read."""
    for line in text.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        above = root if hierarchy == "0" else root / controllers
        for group in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            write(above / group / "cpu.stat", "usage_usec 7000000\n")
            write(above / group / "cpuacct.usage", "7000000000\n")
            memory = "anon 7340032\nshmem 0\ntotal_rss 7340032\ntotal_shmem 0\n"
            write(above / group / "memory.stat", memory)


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
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500\n",
        "0::/user.slice/session-3.scope\n",
        "",
    ],
)
def test_where_all_members_share_a_group_it_is_nobodys(text: str, tmp_path: Path) -> None:
    write_accounts(text, tmp_path)
    found = StepGroup(text, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (None, None)


@pytest.mark.parametrize(
    "step",
    [
        "/system.slice/slurmstepd.scope/job_4711/step_2",
        "/system.slice/n1_slurmstepd.scope/job_4711/step_2",
        # Slurm 26.05; the first is the example of cgroup.conf(5).
        "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0",
        "/system.slice/node1_slurmstepd.scope/sFNDM35NQ39R00/step_3",
        "/system.slice/docker-0123.scope/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_1",
        "/hpc.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0",
    ],
)
@pytest.mark.parametrize(
    "below",
    [
        "/user/task_0",
        # What a process might make below its own task.
        "/user/task_0/system.slice/slurmstepd.scope/job_1/step_1/user/task_0",
    ],
)
def test_a_step_is_found_by_its_jobs_number_or_sluid(step: str, below: str, tmp_path: Path) -> None:
    write(tmp_path / f"{step}/user/cpu.stat".lstrip("/"), "usage_usec 2500000\n")
    write(tmp_path / f"{step}/user/memory.stat".lstrip("/"), "anon 1048576\nshmem 0\n")
    found = StepGroup(f"0::{step}{below}\n", str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (2.5, 1.0)


SESSION = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "text",
    [
        # A user may make any directory in the part of the tree that is the session's.
        f"0::{SESSION}/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
        f"0::{SESSION}/app.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
        f"0::{SESSION}/sEKNKTV3WPV500/step_0/user/task_0\n",
        f"0::/machine.slice/pod.scope{SESSION}/slurmstepd.scope/job_4711/step_0/user\n",
        f"4:memory:{SESSION}/slurm/uid_1000/job_4711/step_0/task_0\n",
        f"2:cpuacct:{SESSION}/slurm/uid_1000/job_4711/step_0/task_0\n",
        # Nothing of Slurm's above it.
        "0::/system.slice/cron.service/sEKNKTV3WPV500/step_0/user/task_0\n",
        "0::/system.slice/cron.service/job_4711/step_0/user/task_0\n",
        "0::/system.slice/not-slurmstepd.scope/sEKNKTV3WPV500/step_0/user\n",
        # No SLUID: too short, too long, small letters, letters that its alphabet lacks.
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV5/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV50000/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/seknktv3wpv500/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPVILO/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV5UU/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/system/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/job_4711/step_0x/user/task_0\n",
        # Version 1 has no SLUIDs.
        "4:memory:/slurm/uid_1000/sEKNKTV3WPV500/step_0/task_0\n",
    ],
)
def test_what_only_looks_like_a_step_is_none(text: str, tmp_path: Path) -> None:
    write_accounts(text, tmp_path)
    found = StepGroup(text, str(tmp_path))
    assert (found.read_cpu_s(), found.read_host_memory_mb()) == (None, None)


@pytest.mark.parametrize("text", [V2, V2_SLUID, V1])
def test_a_group_without_accounts_says_nothing(text: str, tmp_path: Path) -> None:
    found = StepGroup(text, str(tmp_path))
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


NAMESPACE = (
    "exec unshare --user --map-root-user --pid --fork --kill-child --mount-proc"
    " sh -c 'sleep 60 & echo; wait'"
)
"""Inside, the shell is process 1 and sleep is process 2."""


@pytest.fixture
def container(
    child: Callable[..., subprocess.Popen[bytes]],
) -> Callable[[], subprocess.Popen[bytes]]:
    """Starts processes in a pid namespace of their own, below the one that is returned."""
    probe = [*NAMESPACE.partition(" sh ")[0].split()[1:], "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")

    def start() -> subprocess.Popen[bytes]:
        outer = child(NAMESPACE)
        assert outer.stdout is not None
        outer.stdout.readline()
        return outer

    return start


def test_a_process_of_a_container_is_known_by_the_pid_it_has_there_or_here(
    container: Callable[[], subprocess.Popen[bytes]],
) -> None:
    outer = container()
    table = ProcessTable("/pack")
    table.add((4, 1), outer.pid)
    table.look()
    pids = table.list_pids((4, 1))
    assert len(pids) == 3
    assert table.share_out({2: 6.0}) == {(4, 1): 6.0}
    # As a driver does that was measured.
    assert table.share_out({pids[-1]: 6.0}) == {(4, 1): 6.0}


def test_of_a_member_in_a_container_that_is_not_listed_nothing_is_known(
    container: Callable[[], subprocess.Popen[bytes]],
    child: Callable[..., subprocess.Popen[bytes]],
) -> None:
    plain, inside = child("sleep 60"), container()
    table = ProcessTable("/pack")
    table.add((1, 1), plain.pid)
    table.add((2, 1), inside.pid)
    table.look()
    # The other one is in no list and uses none.
    assert table.share_out({}) == {(2, 1): None}
    assert table.share_out({os.getpid(): 5.0}) == {(2, 1): None}
    assert table.share_out({plain.pid: 3.0}) == {(1, 1): 3.0, (2, 1): None}
    table.remove((2, 1))
    assert table.share_out({}) == {}


def test_a_pid_that_two_containers_have_is_neithers(
    container: Callable[[], subprocess.Popen[bytes]],
) -> None:
    table = ProcessTable("/pack")
    for number in (1, 2):
        table.add((number, 1), container().pid)
    table.look()
    assert table.share_out({2: 6.0}) == {(1, 1): None, (2, 1): None}


def test_where_the_monitor_is_in_a_container_a_pid_that_it_does_not_see_may_be_anybodys(
    child: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = child("sleep 60"), child("sleep 60")
    unseen = 1 << 30
    monkeypatch.setattr(member_reading, "is_in_initial_pid_namespace", lambda: False)
    table = ProcessTable("/pack")
    table.add((1, 1), one.pid)
    table.add((2, 1), other.pid)
    table.look()
    assert table.share_out({unseen: 9.0, one.pid: 3.0}) == {(1, 1): 3.0, (2, 1): None}
    assert table.share_out({os.getpid(): 9.0, one.pid: 3.0}) == {(1, 1): 3.0}
    # Outside of any, who is not seen is another user.
    monkeypatch.setattr(member_reading, "is_in_initial_pid_namespace", lambda: True)
    table = ProcessTable("/pack")
    table.add((1, 1), one.pid)
    table.look()
    assert table.share_out({unseen: 9.0}) == {}


def test_a_process_with_a_pid_namespace_of_its_own_is_told_from_others(
    container: Callable[[], subprocess.Popen[bytes]],
) -> None:
    outer = container()
    (first,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    assert read_inner_pid(int(first)) == 1
    assert read_inner_pid(outer.pid) is None
    assert read_inner_pid(1 << 30) is None


def test_a_process_that_is_gone_is_none(child: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = child("exit 0")
    stat = read_stat(process.pid)
    assert stat is not None
    assert stat.parent == os.getpid()
    process.wait()
    assert read_stat(process.pid) is None
