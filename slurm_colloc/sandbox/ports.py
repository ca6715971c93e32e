"""TCP ports for the daemons."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from slurm_colloc.errors import StateError

_FIRST = 20000
_TRIES = 2000
_LISTEN = "0A"


def is_port_free(port: int) -> bool:
    """Whether a daemon could listen on this port now, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def is_port_listening(port: int) -> bool:
    """Whether somebody listens on this TCP port.

    The kernel's tables are read (proc(5), net/tcp) because a daemon writes an error into its log
    for each connection that says nothing.
    """
    wanted = f"{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[1].endswith(f":{wanted}") and columns[3] == _LISTEN:
                return True
    return False


def choose_free_ports(count: int) -> tuple[int, ...]:
    """Free ports below the range that the kernel gives to outgoing connections.

    A port out of that range could be taken while its daemon is down.

    Raises:
        StateError: There are not so many.
    """
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        end = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        end = 32768
    if end - _FIRST < 10 * count:
        end = 65535
    generator = random.SystemRandom()
    chosen: list[int] = []
    for _ in range(_TRIES):
        port = generator.randrange(_FIRST, end)
        if port not in chosen and is_port_free(port):
            chosen.append(port)
            if len(chosen) == count:
                return tuple(chosen)
    raise StateError(f"this machine has no {count} free TCP ports between {_FIRST} and {end}")
