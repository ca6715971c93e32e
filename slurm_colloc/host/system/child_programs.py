"""Programs that the node side starts: with nothing inherited, a time limit, and a cap on output.

Also: doing one thing as another user: root's way to touch a user's files.

What root starts for a user writes itself down before it is that user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.control_groups import enter_groups, set_ordinary_oom_score
from slurm_colloc.host.system.directories import Owner
from slurm_colloc.host.system.node_processes import identify, wait_until_ended
from slurm_colloc.host.system.signals import KILL, end_child

# ---- Doing one thing as another user: root's way to touch a user's files -------------------------

_PR_SET_NO_NEW_PRIVS = 38
_LIMIT_BYTES = 65536
_KILL_S = 0.5


def become(owner: Owner) -> None:
    """Give up root for good, in a process of its own.

    Raises:
        OSError: This process is not that user's alone now.
    """
    os.setgroups(list(owner.groups))
    os.setresgid(owner.gid, owner.gid, owner.gid)
    os.setresuid(owner.uid, owner.uid, owner.uid)
    # The kernel takes (uid_t)-1 for "leave it as it is", and says that all went well.
    if os.getresuid() != (owner.uid,) * 3 or os.getresgid() != (owner.gid,) * 3 or not owner.uid:
        raise PermissionError(errno.EPERM, f"this process cannot become user {owner.uid}")


def run_as(owner: Owner, work: Callable[[], str], *, timeout_s: float) -> str:
    """Run a function in a child process that has given up root for good.

    Args:
        owner: Whom the child becomes: uid, gid and groups, without a way back.
        work: The function; its text comes back, cut after 64 KiB.
        timeout_s: How long it may take; the user's file system may hang.

    Raises:
        NodeError: It failed, or took too long.
        OSError: No child can be made.
    """
    read_end, write_end = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            become(owner)
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            os.umask(0o077)
            os.write(write_end, b"+" + os.fsencode(work())[:_LIMIT_BYTES])
            status = 0
        except BaseException as error:  # noqa: BLE001 - a forked child must never return
            with contextlib.suppress(OSError):
                os.write(write_end, b"-" + str(error).encode("utf-8", "replace")[:4096])
        finally:
            os._exit(status)
    os.close(write_end)
    try:
        return _read_answer(read_end, time.monotonic() + timeout_s, timeout_s)
    finally:
        os.close(read_end)
        end_child(child)
        ended = identify(child)
        if ended is not None:
            wait_until_ended([ended], time.monotonic() + _KILL_S)
        # One that hangs in the kernel is left to the process that inherits it.
        os.waitpid(child, os.WNOHANG)


def _read_answer(descriptor: int, deadline: float, timeout_s: float) -> str:
    data = b""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            raise NodeError(f"no answer within {timeout_s:g} s")
        chunk = os.read(descriptor, _LIMIT_BYTES)
        if not chunk:
            break
        data += chunk
    if not data.startswith(b"+"):
        raise NodeError(os.fsdecode(data[1:]) or "it ended without a word")
    return os.fsdecode(data[1:])


# ----
# Programs that the node side starts: with nothing inherited, a time limit, and a cap on output.

Child = subprocess.Popen[bytes]
PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL

OUTPUT_LIMIT_BYTES = 1 << 20
DAEMON_FILE_LIMIT_BYTES = 256 << 20
_PR_SET_PDEATHSIG = 1
_UNCOLLECTED_S = 0.5


@dataclass(frozen=True)
class Confinement:
    """What keeps hold of a program that root starts for a user.

    Args:
        groups: Control groups that it enters while it is still root's.
        record: Descriptor of a file of root's. The program's process writes itself into it while it
            is still root's: pid, start and uid in the first line, then each group. One that stays
            root's does so as well.
    """

    groups: tuple[str, ...]
    record: int


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Args:
        returncode: Its exit status, negative for a signal; None where it was killed at its time
            limit, or did not even die of that.
        stdout: What it wrote there, up to the cap.
        stderr: Likewise.
        elapsed_s: How long it took.
        problem: Why there is no exit status, or the output is cut; empty where all is well.
    """

    returncode: int | None
    stdout: str
    stderr: str
    problem: str = ""


def start_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int = DEVNULL,
    owner: Owner | None = None,
    confinement: Confinement | None = None,
    own_session: bool = False,
    directory: str | None = "/",
    umask: int = 0o077,
) -> Child:
    """Start a program that inherits only its three standard descriptors.

    Args:
        argv: Absolute path and arguments.
        environment: Its whole environment.
        stdin: A descriptor, or PIPE, or DEVNULL; likewise the two others.
        stdout: See there.
        stderr: See there.
        owner: As root: whom it runs as, without a way back.
        confinement: As root: where it writes itself down, and is from its first instruction on.
        own_session: Make it the leader of a session. As root: one that is none dies with the hook.
        directory: Where it runs.
        umask: Its mask for the modes of new files.

    Raises:
        OSError: It cannot be started.
    """
    # Looked up before the fork: nothing may be loaded between fork and exec.
    libc = ctypes.CDLL(None, use_errno=True) if owner else None

    def restrict() -> None:
        # Still root.
        set_ordinary_oom_score()
        if confinement is not None:
            uid = owner.uid if owner else os.geteuid()
            os.write(confinement.record, _describe_self(uid, confinement.groups))
            # Before it is another program: what that forks at once could leave its session.
            enter_groups(confinement.groups)
        if owner is None:
            return
        assert libc is not None
        become(owner)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if not own_session:
            # It is in no group that a hook ends: a killed hook takes it along.
            libc.prctl(_PR_SET_PDEATHSIG, KILL, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (DAEMON_FILE_LIMIT_BYTES, DAEMON_FILE_LIMIT_BYTES)
        )

    preexec: Callable[[], None] | None = restrict if owner or confinement else None
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment),
            cwd=directory,
            close_fds=True,
            start_new_session=own_session,
            umask=umask,
            preexec_fn=preexec,  # noqa: PLW1509 - hooks and keeper have one thread
        )
    except subprocess.SubprocessError as error:
        reason = "it cannot enter its control groups as its user"
        raise OSError(errno.EPERM, reason) from error


def _describe_self(uid: int, groups: Sequence[str]) -> bytes:
    with open("/proc/self/stat", "rb") as file:
        start_ticks = file.read().rpartition(b")")[2].split()[19]
    lines = [b"%d %s %d" % (os.getpid(), start_ticks, uid), *map(os.fsencode, groups)]
    return b"".join(line + b"\n" for line in lines)


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    text: str = "",
    timeout_s: float,
    owner: Owner | None = None,
) -> Outcome:
    """Run a program to its end, or kill it at its time limit.

    Args:
        argv: Absolute path and arguments.
        environment: Its whole environment.
        text: For its standard input.
        timeout_s: How long it may take.
        owner: As root: whom it runs as.

    Raises:
        OSError: It cannot be started.
    """
    child = start_program(
        argv,
        environment,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        owner=owner,
    )
    return finish_program(child, text=text, timeout_s=timeout_s)


def finish_program(child: Child, *, text: str, timeout_s: float) -> Outcome:
    """Give a program that was started with three pipes its input and collect what it says.

    Args:
        child: The program.
        text: For its standard input.
        timeout_s: How long it may take from now on.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        return _converse(child, text, timeout_s)
    except BaseException:
        # A hook's own deadline may ring at any moment.
        end_child(child.pid)
        raise


def _converse(child: Child, text: str, timeout_s: float) -> Outcome:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError):
        # A command is a line, which a pipe takes at once.
        child.stdin.write(text.encode())
    with contextlib.suppress(OSError):
        child.stdin.close()
    data = {child.stdout: bytearray(), child.stderr: bytearray()}
    problem = ""
    with selectors.DefaultSelector() as selector:
        for pipe in data:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not problem:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                problem = f"no answer within {timeout_s:g} s"
                break
            for key, _ in selector.select(left_s):
                pipe = child.stdout if key.fileobj is child.stdout else child.stderr
                chunk = os.read(pipe.fileno(), 65536)
                data[pipe] += chunk
                if not chunk:
                    selector.unregister(pipe)
                elif len(data[pipe]) > OUTPUT_LIMIT_BYTES:
                    problem = f"more than {OUTPUT_LIMIT_BYTES} bytes of output"
    status = collect(child, 0.0 if problem else max(0.0, deadline - time.monotonic()))
    if status is None and not problem:
        problem = f"it did not end within {timeout_s:g} s"
    if status is None:
        end_child(child.pid)
        # One that is stuck in the kernel is left to the kernel.
        collect(child, _UNCOLLECTED_S)
    for pipe in data:
        pipe.close()
    out, err = (bytes(value).decode("utf-8", "replace") for value in data.values())
    return Outcome(status, out, err, problem)


def collect(child: Child, timeout_s: float) -> int | None:
    """Wait for a child; its exit status, None where it still runs."""
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
