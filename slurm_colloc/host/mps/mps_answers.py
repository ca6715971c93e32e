"""What NVIDIA's control program prints, read: clients, percentages, limits, complaints; pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_colloc.host.system.child_programs import Outcome


@dataclass(frozen=True)
class ListedClient:
    """A process that uses the GPU through a server.

    Args:
        pid: Its pid, as seen from here.
        server_pid: The server it is connected to.
        device: The GPU, cut short by the daemon (`GPU-5a41ce45-e82a-a159`); None where not told.
        namespace: Its pid namespace (inode number); None where not told.
        command: Its program; None where not told.
        namespace_pids: Its pids from this namespace inwards: the last is what it calls itself.
    """

    pid: int
    server_pid: int
    device: str | None = None
    namespace: int | None = None
    command: str | None = None
    namespace_pids: tuple[int, ...] = ()


def parse_ps(text: str) -> tuple[ListedClient, ...]:
    """Read the table of `ps` by the names of its columns.

    Args:
        text: `PID ID SERVER DEVICE NAMESPACE COMMAND`, one line a context (550, 580).
    """
    columns: list[str] = []
    clients: dict[tuple[int, int], ListedClient] = {}
    for line in text.splitlines():
        words = line.split()
        if "PID" in words and "SERVER" in words:
            columns = words
            continue
        if not columns or len(words) < len(columns):
            continue
        # The command is last and may hold blanks.
        words = [*words[: len(columns) - 1], " ".join(words[len(columns) - 1 :])]
        row = {column: words[index] for index, column in enumerate(columns)}
        with contextlib.suppress(ValueError):
            namespace = row.get("NAMESPACE", "")
            client = ListedClient(
                pid=int(row["PID"]),
                server_pid=int(row["SERVER"]),
                device=row.get("DEVICE"),
                namespace=int(namespace) if namespace.isdigit() else None,
                command=row.get("COMMAND"),
            )
            clients.setdefault((client.pid, client.server_pid), client)
    return tuple(clients.values())


def parse_percentage(answer: Outcome) -> float | None:
    """Read a thread percentage; None where the answer is not a number."""
    with contextlib.suppress(ValueError):
        return float(answer.stdout.strip())
    return None


def parse_limit_mb(answer: Outcome) -> int | None:
    """Read a gpu_memory limit as the daemon shows it, in MiB; None where none is set.

    The daemon rounds down to whole GiB: 1500M is shown as 1G (550, 580).
    """
    match = re.fullmatch(r"(\d+)([GM])B?", answer.stdout.strip())
    if match is None:
        return None
    return int(match[1]) * (1024 if match[2] == "G" else 1)


def is_limit_shown(wanted_mb: int, shown_mb: int | None) -> bool:
    """Whether a limit that was set is what the daemon shows, rounded as it rounds."""
    return shown_mb is not None and shown_mb in (wanted_mb, wanted_mb // 1024 * 1024)


def find_complaints(lines: Iterable[str]) -> tuple[str, ...]:
    """Find what the daemon writes to its log only, while the command's answer looks well."""
    return tuple(line for line in lines if _COMPLAINT.search(line))


_COMPLAINT = re.compile(
    r"Invalid|Insufficient privileges|Not enough privilege|Failed to|Unknown command"
    r"|not found|No default pinned|expected between|Internal error|requires?\b",
    re.IGNORECASE,
)
