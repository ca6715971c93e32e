"""A prolog whose daemon and control program are not NVIDIA's: whatever they do, the job starts.

As if the user had found a way to answer in their place: the answers decide only whether the job is
told of a daemon.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from slurm_colloc.host.system.control_groups import NAME, read_hierarchies

from .hook_node import NODE, OTHER, PATIENCE_S, HookNode, check_clean, require_strace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

SECRET = "only-root-may-read-this"
_HEAD = """#!{python} -IS
import os, signal, socket, sys, time
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
logs = os.environ["CUDA_MPS_LOG_DIRECTORY"]
is_daemon = "-f" in sys.argv
def listen():
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(pipe + "/control")
    listener.listen()
    return listener
"""
# What stands in for nvidia-cuda-mps-control: with -f the daemon, without it the control program.
BEHAVIOURS = {
    "never listens": "time.sleep(600)",
    "ends at once": "os.write(1, b'\\x1b[2J\\xff\\n' * 1000); sys.exit(3)",
    "never answers": "kept = listen() if is_daemon else None\ntime.sleep(600)",
    "answers nonsense": (
        "if is_daemon:\n    kept = listen(); time.sleep(600)\n"
        "sys.stdin.read(); os.write(1, b'\\xff\\x00 1 99999999999999999999\\n' * 50)"
    ),
    "answers without end": (
        "if is_daemon:\n    kept = listen(); time.sleep(600)\n"
        "while True: os.write(1, b'1\\n' * 4096)"
    ),
    "writes without end": (
        "kept = listen() if is_daemon else None\n"
        "try:\n    while True: os.write(1, b'[2026-11-25] log line ' * 500 + b'\\n')\n"
        "except OSError: time.sleep(600)"
    ),
    "forks and leaves its session": (
        "if is_daemon:\n"
        "    for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "    for _ in range(4): os.fork()\n"
        "    os.getpid() == os.getsid(0) or os.setsid()\n"
        "time.sleep(600)"
    ),
    "another listens": (
        "if is_daemon and os.fork() == 0:\n    kept = listen(); time.sleep(600)\ntime.sleep(600)"
    ),
    "plants links": (
        "for name in ('control.log', 'server.log', 'x'):\n"
        "    try: os.symlink({secret!r}, logs + '/' + name)\n    except OSError: pass\n"
        "if is_daemon: kept = listen()\n"
        "time.sleep(600)"
    ),
    "plants pipes": (
        "for name in ('control.log', 'server.log'):\n"
        "    try: os.mkfifo(logs + '/' + name)\n    except OSError: pass\n"
        "if is_daemon: kept = listen()\n"
        "time.sleep(600)"
    ),
}


def replace_programs(bed: HookNode, behaviour: str) -> HookNode:
    """The same node with other programs in the place of NVIDIA's."""
    place = bed.home / "sim"
    (place / "bin").mkdir(parents=True)
    for entry in bed.simulation.iterdir():
        if entry.name != "bin":
            (place / entry.name).symlink_to(entry)
    secret = bed.home / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    text = _HEAD.replace("{python}", sys.executable)
    text += behaviour.replace("{secret!r}", repr(str(secret)))
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        program = place / "bin" / name
        program.write_text(f"{text}\n")
        program.chmod(0o755)
    return dataclasses.replace(bed, simulation=place)


def list_strays(place: Path) -> list[int]:
    """Processes that run one of the stand-ins, wherever they have gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(str(place)) in words and b"nvidia-cuda-mps" in words:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_the_job_starts_without_and_nothing_is_left(bed: HookNode, name: str) -> None:
    hostile = replace_programs(bed, BEHAVIOURS[name])
    # Less than usual, so that those who wait for the deadline are not waited for as long.
    hostile.write_policy(deadline_s=5.0, stop_s=3.0)
    told = hostile.prolog()
    assert (told.status, told.audit["action"]) == (0, "told"), told.audit
    assert "unforeseen" not in str(told.audit)
    assert SECRET not in str(told.audit)
    assert hostile.setup()["mode"] == ""
    assert list_strays(bed.home) == []
    # The next user's job on that GPU has what it asked for.
    after = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
    assert after.audit["action"] == "prepared", after.audit
    assert bed.epilog("11").status == 0
    assert bed.epilog("12").status == 0
    check_clean(bed)


def test_a_daemon_that_forks_before_its_hook_goes_on_leaves_nothing(bed: HookNode) -> None:
    """Of one that is the user's before it is in its groups, what leaves its session gets away."""
    require_strace()
    label = f"{NODE}-11-{zlib.crc32(os.fsencode(str(bed.run))):08x}"
    entries = [f"{one.mount}/{NAME}/{label}/cgroup.procs" for one in read_hierarchies()]
    if not entries:
        pytest.skip("this machine has no control groups to make any in")
    hostile = replace_programs(bed, BEHAVIOURS["forks and leaves its session"])
    hostile.write_policy(deadline_s=8.0, stop_s=3.0)
    # As slowly as a busy kernel moves a process into a group.
    slowly = [word for path in entries for word in ("-P", path)]
    slowly += ["-e", "inject=write:delay_enter=1000000:when=1"]
    ended = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "trace=write", *slowly, *hostile.argv("prolog")],
        env=hostile.environment("11"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended
    assert bed.read_audit()[-1]["action"] == "told"
    assert list_strays(bed.home) == []
    assert bed.epilog("11").status == 0
    check_clean(bed)


def test_a_killed_prolog_takes_its_control_program_along(bed: HookNode) -> None:
    """One that waits for an answer is in no group of ours, and must not stay."""
    hostile = replace_programs(bed, BEHAVIOURS["never answers"])
    hook = subprocess.Popen(
        hostile.argv("prolog"),
        env=hostile.environment("11"),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    deadline = time.monotonic() + PATIENCE_S
    # The daemon, and the control program that asks it.
    while len(list_strays(bed.home)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hook.kill()
    hook.wait()
    bed.epilog()
    while list_strays(bed.home):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    check_clean(bed)
