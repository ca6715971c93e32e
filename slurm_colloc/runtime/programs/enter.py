"""Runs a command inside a running member: who: the user; where: the member's node.

    python -IB -m slurm_colloc.runtime.programs.enter [--term=TERM] MEMBER RUN_PREFIX [COMMAND...]

`csub shell` starts it, in a job step of its own alongside the member's or, without Slurm, directly.
It takes environment, working directory, CPUs, umask and limits from the member's process, so that
none of them leaves the node, and the member's cgroups where it may (an ordinary user may not where
Slurm made them: the step then has limits of its own, equal to the member's). It stays as the
command's parent, to leave nothing behind and to end with the member.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.process_name import name_process
from slurm_colloc.runtime.programs.own_places import enter_places_of
from slurm_colloc.runtime.programs.wrapper import SCHEMA, end_leftovers, reap

POLL_S = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_LIMITS = tuple(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Inside:
    """What a process inside a member has.

    Attributes:
        pid: The member's process, whose cgroups and limits these are.
        environment: What that process was started with.
        directory: Its working directory.
        umask: Its umask.
        cpus: The CPUs that the member is bound to.
    """

    pid: int
    environment: dict[bytes, bytes]
    directory: str
    umask: int
    cpus: Sequence[int]


def main(argv: Sequence[str]) -> int:
    """Run a command, or the member's shell; the command's exit status."""
    name_process("csub-enter")
    words = list(argv)
    term = ""
    if words[0].startswith("--term="):
        term = words.pop(0).partition("=")[2]
    member, prefix, *command = words
    try:
        with open(f"{prefix}.started", "rb") as file:
            started = json.load(file)
        if started["schema"] != SCHEMA:
            sys.stderr.write(
                f"csub: error: another version of csub has started {member}: use that one\n"
            )
            return 1
        wrapper_pid, pid, cpus = started["wrapper_pid"], started["pid"], started["cpus"]
        if not is_alive(wrapper_pid, prefix):
            raise ProcessLookupError
        inside = Inside(
            pid, read_environment(pid), os.readlink(f"/proc/{pid}/cwd"), read_umask(pid), cpus
        )
    except (OSError, ValueError, KeyError):
        sys.stderr.write(f"csub: error: {member} does not run on {os.uname().nodename} any more\n")
        return 1
    if term:
        inside.environment[b"TERM"] = os.fsencode(term)
    command = command or [os.fsdecode(inside.environment.get(b"SHELL", b"/bin/sh"))]
    # What the command leaves running comes here, to be ended with it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # They are for the command, which the terminal sends them to as well.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        become(command, inside)
    status = watch(child, member, wrapper_pid, prefix)
    end_leftovers(None)
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def become(command: Sequence[str], inside: Inside) -> None:
    """In the child: be where the member is and become the command. Never returns."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
        join_cgroups(inside.pid)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, inside.cpus)
        copy_limits(inside.pid)
        os.umask(inside.umask)
        enter_places_of(inside.pid, inside.directory)
        os.chdir(inside.directory)
        for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.execvpe(command[0], list(command), inside.environment)
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        text = error.strerror if isinstance(error, OSError) else str(error)
        with contextlib.suppress(OSError):
            os.write(2, f"csub: error: {command[0]}: {text}\n".encode("utf-8", "surrogateescape"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def watch(child: int, member: str, wrapper_pid: int, prefix: str) -> int:
    """Wait for the command; its status word. It is ended when its member has ended."""
    while True:
        info = signal.sigtimedwait(_WATCHED, POLL_S)
        status = reap(child)
        if status is not None:
            return status
        if info is not None and info.si_signo != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, info.si_signo)  # noqa: TID251 - its own
        elif info is None and not is_alive(wrapper_pid, prefix):
            with contextlib.suppress(OSError):
                os.write(2, f"\r\ncsub: {member} has ended, and this shell with it\r\n".encode())
            return int(signal.SIGHUP)


def is_alive(wrapper_pid: int, prefix: str) -> bool:
    """The member's wrapper still runs on this node; its process id may have been used again."""
    try:
        with open(f"/proc/{wrapper_pid}/cmdline", "rb") as file:
            return os.fsencode(f"{prefix}.launch") in file.read().split(b"\0")
    except OSError:
        return False


def read_environment(pid: int) -> dict[bytes, bytes]:
    """The environment with which a process was started."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (item.partition(b"=") for item in file.read().split(b"\0"))
        return {name: value for name, separator, value in pairs if separator}


def read_umask(pid: int) -> int:
    """The umask of a process, 077 where the kernel does not tell it."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


def copy_limits(pid: int) -> None:
    """Take over the soft resource limits of a process, as far as one's own hard ones allow."""
    for number in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            soft = resource.prlimit(pid, number)[0]
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))


def join_cgroups(pid: int) -> bool:
    """Move into the cgroups of a process; False where one of them may not be entered."""
    entered = True
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return False
    for hierarchy, controllers, path in lines:
        if "=" in controllers:
            # systemd's own tree of names: nothing is limited by it.
            continue
        root = f"{_CGROUPS}/{controllers}" if hierarchy != "0" else _CGROUPS
        try:
            with open(f"{root}{path}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))
        except OSError:
            entered = False
    return entered


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
