"""Ending the sandbox's processes, and only if they are still the same ones.

A signal goes through a pidfd that was opened before pid and start time were checked: a recycled pid
is never signalled. For the same reason pid files are not trusted: the daemons are found by their
command lines, which name the sandbox's own configuration file.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    open_process,
    wait_until_ended,
)

_POLL_S = 0.02
_KILL_S = 5.0


def _read_open_files(pid: int) -> list[str]:
    """What the descriptors of a process point to; those that close meanwhile are left out."""
    links: list[str] = []
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.append(os.readlink(entry))  # noqa: PTH115 - "socket:[1]" is no path
    return links


def find_socket_owners(directory: Path, table: Iterable[Process]) -> dict[ProcessId, str]:
    """Processes that hold a Unix socket bound below `directory`, with the socket's path.

    A slurmstepd rewrites its command line, so its socket in the spool directory is the only sure
    sign of whose it is.
    """
    mark = f"{directory}/"
    inodes: dict[str, str] = {}
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return {}
    for line in lines:
        columns = line.split(maxsplit=7)
        if len(columns) == 8 and columns[7].startswith(mark):
            inodes[f"socket:[{columns[6]}]"] = columns[7]
    owners: dict[ProcessId, str] = {}
    if not inodes:
        return owners
    for process in table:
        for link in _read_open_files(process.id.pid):
            if link in inodes:
                owners[process.id] = inodes[link]
    return owners


def send_signal(identity: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone."""
    descriptor = open_process(identity)
    if descriptor is None:
        return False
    try:
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, number)
        else:
            # For kernels before 5.3: the check and the signal are two steps, microseconds apart.
            os.kill(identity.pid, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S) -> bool:
    """Ask until the condition holds; False where it never did within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def stop_processes(identities: Iterable[ProcessId], *, term_s: float) -> set[ProcessId]:
    """TERM, and KILL for what is left after `term_s` seconds (0: KILL at once).

    Returns:
        What even KILL did not end within five seconds.
    """
    left = set(identities)
    for number, wait_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, _KILL_S)):
        if wait_s <= 0:
            continue
        for identity in left:
            send_signal(identity, number)
        left = set(wait_until_ended(left, time.monotonic() + wait_s))
        if not left:
            break
    return left
