"""Starting the simulated control daemon: directories, lock, logs, sockets, pid file.

The order of the steps and every mode are those that strace(1) showed of 550.163.01, its faults
included: it follows links at the pid file and in the log directory, and never truncates them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator

from slurm_colloc_lab.simgpu.mps.client_limits import parse_number, parse_percentage
from slurm_colloc_lab.simgpu.mps.control_daemon import ControlDaemon, DaemonPaths, Defaults
from slurm_colloc_lab.simgpu.mps.control_program import DEFAULT_PIPE_DIRECTORY
from slurm_colloc_lab.simgpu.mps.driver_versions import MpsProfile

_DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"
# sockaddr_un.sun_path takes 108 bytes, of which the daemon leaves two unused (550, 580).
_LONGEST_SOCKET_PATH = 106
_PID_FILE = "nvidia-cuda-mps-control.pid"


class _Failed(Exception):
    """The daemon cannot start; the text is all that it says."""


def start(profile: MpsProfile, *, foreground: bool) -> int:
    """Become the daemon, or with -d start it and come back once it listens; the exit status."""
    environ = os.environ
    log_directory = environ.get("CUDA_MPS_LOG_DIRECTORY") or _DEFAULT_LOG_DIRECTORY
    has_logs = _prepare_log_directory(log_directory)
    if foreground:
        return _serve(profile, log_directory if has_logs else None, None)
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    if os.fork():
        os._exit(0)
    os.setsid()
    status = _serve(profile, log_directory if has_logs else None, write_end)
    sys.stdout.flush()
    os._exit(status)


def _prepare_log_directory(directory: str) -> bool:
    with contextlib.suppress(OSError):
        os.mkdir(directory, 0o700)
    if os.access(directory, os.R_OK | os.W_OK):
        return True
    _say(
        f"Warning: Failed writing log files to directory [{directory}]. No logs will be available."
    )
    return False


def _serve(profile: MpsProfile, log_directory: str | None, notify: int | None) -> int:
    """Everything after the fork.

    Args:
        profile: The driver.
        log_directory: Where the logs go with -d; None for no logs.
        notify: Pipe to the process that waits for the start with -d; None with -f.
    """
    pipe_directory = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY
    try:
        lock = _take_lock(pipe_directory)
        if notify is not None:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            os.close(null)
        logs = _open_logs(log_directory, foreground=notify is None)
        wedged = profile.wedges and _is_read(f"{pipe_directory}/log")
        places = _make_places(pipe_directory, lock, logs)
    except _Failed as problem:
        if str(problem):
            _say(str(problem))
        return 1
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("nvidia-cuda-mps-control")
    if notify is not None:
        os.write(notify, b"\0")
        os.close(notify)
    if wedged:
        _hang(places)
    return ControlDaemon(profile, places, _read_defaults()).run()


@contextlib.contextmanager
def _no_umask() -> Iterator[None]:
    kept = os.umask(0)
    try:
        yield
    finally:
        os.umask(kept)


def _take_lock(pipe_directory: str) -> int:
    refusal = _Failed(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe_directory}")
    with _no_umask():
        try:
            os.mkdir(pipe_directory, 0o777)
        except FileExistsError:
            pass
        except OSError:
            raise refusal from None
        try:
            lock = os.open(f"{pipe_directory}/control_lock", os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError:
            raise refusal from None
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _Failed("An instance of this daemon is already running") from None
    return lock


def _open_logs(directory: str | None, *, foreground: bool) -> tuple[int | None, int | None]:
    if foreground:
        return 1, 1
    if directory is None:
        return None, None
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    found: list[int | None] = []
    for name in ("control.log", "server.log"):
        try:
            found.append(os.open(f"{directory}/{name}", flags, 0o666))
        except OSError:
            found.append(None)
    return found[0], found[1]


def _is_read(fifo: str) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _make_places(
    pipe_directory: str, lock: int, logs: tuple[int | None, int | None]
) -> DaemonPaths:
    fifo = f"{pipe_directory}/log"
    try:
        with _no_umask(), contextlib.suppress(FileExistsError):
            os.mkfifo(fifo, 0o777)
        os.chmod(fifo, 0o777)
        if not stat.S_ISFIFO(os.stat(fifo).st_mode):
            raise _Failed("")
        records = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        privileged = _listen(f"{pipe_directory}/control_privileged")
        control = _listen(f"{pipe_directory}/control")
        os.chmod(f"{pipe_directory}/control", 0o666)
        pid_file = f"{pipe_directory}/{_PID_FILE}"
        with _no_umask():
            descriptor = os.open(pid_file, os.O_WRONLY | os.O_CREAT, 0o666)
        os.write(descriptor, str(os.getpid()).encode())
        os.close(descriptor)
    except OSError:
        raise _Failed("") from None
    return DaemonPaths(pipe_directory, lock, records, logs, control, privileged, pid_file)


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise _Failed("")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener.bind(path)
    listener.listen(128)
    return listener


def _read_defaults() -> Defaults:
    """What the environment sets; what makes no sense is ignored without a word."""
    percentage = parse_percentage(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
    priority = parse_number(os.environ.get("CUDA_MPS_CLIENT_PRIORITY", "0"))
    return Defaults(
        percentage=100.0 if percentage is None else percentage,
        priority=priority if priority in (0, 1) else 0,
    )


def _hang(places: DaemonPaths) -> None:
    """Hold the lock for ever with the sockets closed, as 550 did in four of six runs."""
    places.control.close()
    places.privileged.close()
    while True:
        signal.pause()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
