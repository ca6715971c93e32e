"""What went wrong on nodes before, one after the other, through the hooks as slurmd calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.host.hooks.recover_jobs import find_jobs_of_cgroups, list_running_jobs
from slurm_colloc.host.hooks.run_directory import is_mounted
from slurm_colloc.host.system.control_groups import NAME, read_hierarchies
from slurm_colloc.host.system.node_processes import identify

from .false_daemon import false_daemon
from .hook_node import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    NOBODY,
    NODE,
    OTHER,
    PATIENCE_S,
    HookNode,
    check_clean,
    require_strace,
)
from .waiting import Start

_RENAME = (
    "import time; open('/proc/self/comm', 'w').write('slurmstepd'); "
    "print('up', flush=True); time.sleep(600)"
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]


# -- N1: root ends whatever a user names ----------------------------------------------------------


def test_root_ends_no_process_that_a_users_daemon_names(bed: HookNode, start: Start) -> None:
    victims = [start(uid=0), start(uid=OTHER), start(uid=NOBODY)]
    before = [identify(victim.pid) for victim in victims]
    bed.prolog()
    # Never pid 1, which the code before would have ended as well, and the machine with it.
    names = "\n".join(str(victim.pid) for victim in victims)
    with false_daemon(bed, {"text": names}):
        ended = bed.epilog()
    assert ended.status == 0
    assert [identify(victim.pid) for victim in victims] == before
    assert {entry["uid"] for entry in ended.audit["signals"]} == {NOBODY}
    check_clean(bed)


def test_the_next_prolog_ends_no_process_that_a_dead_jobs_daemon_names(
    bed: HookNode, start: Start
) -> None:
    victim = start(uid=0)
    bed.prolog()
    bed.change_checkpoint(phase="undoing")
    with false_daemon(bed, {"text": str(victim.pid)}):
        told = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
    assert (told.status, told.audit["action"]) == (0, "prepared")
    assert told.audit["recovered"][0]["undone"] is True
    assert victim.poll() is None
    assert bed.epilog("12").status == 0
    check_clean(bed)


# -- N2: a daemon that answers slowly, or never ---------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        {"text": "\n".join(str(number) for number in range(40000, 40040)), "delay_s": 1.9},
        {"greets": False},
        {"text": "x" * 4000, "repeat": 1000},
        {"ends": True},
    ],
    ids=["slow", "silent", "long", "breaks off"],
)
def test_a_daemon_that_does_not_answer_costs_nobody_anything(
    bed: HookNode, behaviour: dict[str, object]
) -> None:
    bed.prolog()
    daemon = bed.peer().pid
    with false_daemon(bed, behaviour):
        # As if the epilog had never run: the next user's prolog comes first.
        bed.change_checkpoint(seen=True)
        told = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
        assert told.audit["action"] == "prepared"
        assert told.audit["recovered"][0]["job"] == "11"
        assert identify(daemon) is None
        assert bed.epilog().status == 0
    assert bed.epilog("12").status == 0
    check_clean(bed)


def test_an_epilog_ends_the_daemon_whatever_it_would_answer(bed: HookNode) -> None:
    bed.write_policy(exclusive_process=True)
    before = bed.snapshot()
    bed.prolog()
    daemon = bed.peer().pid
    with false_daemon(bed, {"text": "4000001", "delay_s": 30}):
        ended = bed.epilog()
    assert (ended.status, ended.audit["outcome"]) == (0, "")
    assert identify(daemon) is None
    assert bed.snapshot() == before
    check_clean(bed)


# -- N3: the daemon outside the job's limits ------------------------------------------------------


def test_the_daemon_is_in_groups_with_the_limits_of_the_policy(bed: HookNode) -> None:
    bed.write_policy(daemon_memory_mb=300, daemon_processes=99)
    assert bed.prolog(SLURM_JOB_CPUS_PER_NODE="3").audit["action"] == "prepared"
    found = {}
    for hierarchy in read_hierarchies():
        [group] = Path(hierarchy.mount, NAME).glob(f"{NODE}-11-*")
        assert str(bed.peer().pid) in (group / "cgroup.procs").read_text().split()
        for name in (
            "memory.limit_in_bytes",
            "memory.max",
            "pids.max",
            "cpu.cfs_quota_us",
            "cpu.max",
        ):
            if (group / name).exists():
                found[name] = (group / name).read_text().strip()
        if (group / "devices.list").exists():
            # GPU 0 is the job's; all others are denied, those too that are not there.
            allowed = (group / "devices.list").read_text()
            assert "c 195:1 " not in allowed
    # All limits were set, so each stands in one hierarchy or the other.
    assert bed.setup()["notes"] == []
    assert found["pids.max"] == "99"
    assert (found.get("memory.limit_in_bytes") or found["memory.max"]) == str(300 << 20)
    assert (found.get("cpu.cfs_quota_us") or found["cpu.max"].split()[0]) == "300000"
    bed.epilog()
    check_clean(bed)


def test_no_other_process_of_the_user_gets_hold_of_the_daemon(bed: HookNode) -> None:
    """With and without Yama: neither ptrace nor /proc leads into the groups that root has made."""
    bed.prolog()
    look = (
        "import ctypes, os, sys\n"
        "pid = int(sys.argv[1])\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n"
        "print(libc.ptrace(0x4206, pid, None, 0x40), ctypes.get_errno())\n"
        "for name in ('mem', 'fd/1', 'environ', 'maps'):\n"
        "    try: os.open(f'/proc/{pid}/{name}', os.O_RDONLY); print('open')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look, str(bed.peer().pid)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["-1 1", "13", "13", "13", "13"]
    bed.epilog()


def test_a_site_may_refuse_a_daemon_that_cannot_be_limited(bed: HookNode) -> None:
    bed.write_policy(require_limits=True)
    assert bed.prolog().audit["action"] == "prepared"
    assert bed.epilog().status == 0
    # A node without control groups: no mount of theirs is to be seen.
    hide = (
        "for mount in $(awk '$0 ~ / - cgroup/ {print $5}' /proc/self/mountinfo); do "
        'umount -l "$mount" || exit 99; done; exec "$@"'
    )
    for policy, action in (({"require_limits": True}, "told"), ({}, "prepared")):
        bed.write_policy(**policy)
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *bed.argv("prolog")],
            env=bed.environment("11"),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if ended.returncode == 99:
            pytest.skip("the mounts of control groups cannot be hidden here")
        last = bed.read_audit()[-1]
        assert (ended.returncode, last["action"]) == (0, action)
        if action == "told":
            assert "cannot limit a daemon's devices, host memory, processes" in last["outcome"]
        else:
            assert any("no limit on devices" in note for note in last["notes"])
        assert bed.epilog().status == 0
        assert bed.list_programs() == []
    check_clean(bed)


# -- N4: a node drained by accident: test_lifecycle_gpu has a client in state D -------------------


# -- N6: many files before compute modes ----------------------------------------------------------


def plant_files(place: Path, count: int) -> None:
    """A tree that takes a while to remove."""
    for number in range(count):
        (place / f"{number}\n\x1b[2J").touch()
    os.mkfifo(place / "fifo")
    (place / "deep").mkdir()
    (place / "deep" / "loop").symlink_to("..")


def test_a_users_files_are_limited_where_they_cost_others(bed: HookNode) -> None:
    bed.write_policy(directory_mb=1)
    bed.prolog()
    place = bed.run / "11" / "0" / "l"
    assert is_mounted(str(bed.run / "11"))
    fill = (
        "import os, sys\n"
        "made = 0\n"
        "try:\n"
        "    while made < 100000:\n"
        "        open(f'{sys.argv[1]}/{made}', 'w').close(); made += 1\n"
        "except OSError: pass\n"
        "written = 0\n"
        "try:\n"
        "    with open(f'{sys.argv[1]}/0', 'wb', buffering=0) as file:\n"
        "        while written < 64 << 20: written += file.write(bytes(1 << 16))\n"
        "except OSError: pass\n"
        "print(made, written)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", fill, str(place)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    made, written = map(int, ended.stdout.split())
    assert 100 < made < 4096
    assert written <= 1 << 20
    assert bed.epilog().status == 0
    check_clean(bed)


@pytest.mark.parametrize("size_mb", [64, 0])
def test_compute_modes_come_before_files_and_the_rest_later(bed: HookNode, size_mb: int) -> None:
    """Without a file system of its own, as in a container, files are put aside."""
    bed.write_policy(exclusive_process=True)
    bed.prolog()
    if not size_mb:
        from slurm_colloc.host.hooks.run_directory import unmount_all

        daemon = bed.run / "11"
        unmount_all(str(daemon))
        (daemon / "0" / "l").mkdir(parents=True)
        plant_files(daemon / "0" / "l", 30000)
    else:
        plant_files(bed.run / "11" / "0" / "l", 3000)
    assert bed.node.read_gpus()[0].compute_mode == EXCLUSIVE_PROCESS
    ended = bed.epilog()
    assert (ended.status, ended.audit["outcome"]) == (0, "")
    assert bed.node.read_gpus()[0].compute_mode == DEFAULT
    assert not (bed.run / "11").exists()
    assert not bed.checkpoint_path().exists()
    # What was too much for one hook goes with the next ones.
    for _ in range(50):
        if not (bed.run / "aside").exists():
            break
        bed.prolog("12")
        bed.epilog("12")
    check_clean(bed)


def test_what_holds_files_open_keeps_nothing_from_being_undone(bed: HookNode) -> None:
    """Outside the daemon's group: in the directory, with a file open, mapped and locked."""
    bed.prolog()
    place = bed.run / "11" / "0" / "l"
    hold = (
        "import fcntl, mmap, os, sys, time\n"
        "os.chdir(sys.argv[1])\n"
        "file = open('held', 'w+b'); file.write(bytes(4096)); file.flush()\n"
        "fcntl.flock(file, fcntl.LOCK_EX); held = mmap.mmap(file.fileno(), 4096)\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", hold, str(place)],
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        ended = bed.epilog()
        assert (ended.status, ended.audit["outcome"]) == (0, "")
        assert child.poll() is None
        check_clean(bed)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


# -- N7: a lost GPU -------------------------------------------------------------------------------


def test_a_lost_gpu_costs_no_other_job_its_daemon(bed: HookNode) -> None:
    first, second = bed.node.read_gpus()
    bed.fail_nvml(f"lost={first.uuid}")
    told = bed.prolog("12", SLURM_JOB_GPUS="1")
    assert (told.status, told.audit["action"]) == (0, "prepared")
    assert bed.setup("12")["gpus"] == [second.uuid]
    # The job whose GPU it is gets none, and is told.
    lost = bed.prolog("11", SLURM_JOB_GPUS="0")
    assert (lost.status, lost.audit["action"]) == (0, "told")
    assert bed.epilog("11").status == 0
    assert bed.epilog("12").status == 0
    check_clean(bed)


def test_a_gpu_that_is_lost_while_a_job_has_another_drains_nothing(bed: HookNode) -> None:
    bed.write_policy(exclusive_process=True)
    first, _ = bed.node.read_gpus()
    assert bed.prolog("12", SLURM_JOB_GPUS="1").audit["action"] == "prepared"
    bed.fail_nvml(f"lost={first.uuid}")
    ended = bed.epilog("12")
    assert (ended.status, ended.audit["outcome"]) == (0, "")
    assert bed.node.read_gpus()[1].compute_mode == DEFAULT
    check_clean(bed)


# -- N8: Slurm 26.05's names of jobs --------------------------------------------------------------


def test_a_job_that_runs_under_its_sluid_is_alive(bed: HookNode) -> None:
    sluid = "sEKNKTV3WPV500"
    text = f"0::/system.slice/slurmstepd.scope/{sluid}/step_0/user/task_0"
    assert find_jobs_of_cgroups(text) == (sluid,)
    bed.prolog(SLURM_JOB_SLUID=sluid)
    assert json.loads(bed.checkpoint_path().read_text())["sluid"] == sluid
    unified = next((h.mount for h in read_hierarchies() if h.version == 2), None)
    if unified is None:
        pytest.skip("no cgroup tree of version 2 here")
    group = Path(unified, f"csubtest{os.getpid()}_slurmstepd.scope", sluid)
    group.mkdir(parents=True)
    child = subprocess.Popen(["sleep", "600"])
    try:
        (group / "cgroup.procs").write_text(str(child.pid))
        assert sluid in (list_running_jobs() or ())
        bed.change_checkpoint(seen=True)
        [job] = bed.command("recover")["jobs"]
        assert (job["undone"], job["reason"]) == (None, "its job may be alive")
    finally:
        child.kill()
        child.wait()
        time.sleep(0.05)
        group.rmdir()
        group.parent.rmdir()
    [job] = bed.command("recover")["jobs"]
    assert (job["undone"], job["reason"]) == (True, "Slurm no longer runs it")
    check_clean(bed)


@pytest.mark.parametrize("sluid", ["", "sEKNKTV3WPV50U", "s/../../etc/passwd", "11", "s" * 14])
def test_a_sluid_that_is_none_is_no_name(bed: HookNode, sluid: str) -> None:
    bed.prolog(SLURM_JOB_SLUID=sluid)
    assert json.loads(bed.checkpoint_path().read_text())["sluid"] == ""
    assert bed.epilog().status == 0


# -- N9: titles -----------------------------------------------------------------------------------


def test_a_users_title_keeps_no_dead_job_alive(bed: HookNode) -> None:
    bed.prolog()
    bed.change_checkpoint(seen=True)
    actor = subprocess.Popen(
        ["slurmstepd: [11.batch]", "600"],
        executable="/bin/sleep",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    named = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _RENAME,
        ],
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        assert named.stdout is not None
        assert named.stdout.readline() == b"up\n"
        assert "11" not in (list_running_jobs() or ())
        [job] = bed.command("recover")["jobs"]
        assert job["undone"] is True
    finally:
        for child in (actor, named):
            child.kill()
            child.wait()
        assert named.stdout is not None
        named.stdout.close()
    check_clean(bed)


def test_roots_own_step_daemon_tells_its_job_where_there_are_no_groups(tmp_path: Path) -> None:
    program = tmp_path / "slurmstepd"
    program.symlink_to("/bin/sleep")
    # A program named slurmstepd, with the title that Slurm gives it.
    child = subprocess.Popen(["slurmstepd: [987654.0]", "600"], executable=str(program))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "987654" not in (list_running_jobs() or ()):
            assert time.monotonic() < deadline
        child.send_signal(signal.SIGSTOP)
        assert "987654" in (list_running_jobs() or ())
    finally:
        child.kill()
        child.wait()


def test_no_hook_reads_what_may_wait_for_another_process(bed: HookNode) -> None:
    """cmdline, environ, maps and mem of other processes wait for their mmap_lock."""
    require_strace()
    bed.prolog()
    bed.prolog("12", SLURM_JOB_GPUS="1")
    for command, job in (("prolog", "13"), ("epilog", "11"), ("epilog", "12")):
        traced = subprocess.run(
            ["strace", "-f", "-e", "trace=open,openat", *bed.argv(command)],
            env=bed.environment(job),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        opened = {line.split('"')[1] for line in traced.stderr.splitlines() if '"/proc/' in line}
        assert opened
        waits = ("cmdline", "environ", "maps", "mem", "smaps", "exe")
        assert [path for path in opened if path.endswith(waits) and path[6].isdigit()] == []
    bed.epilog("13")
    check_clean(bed)
