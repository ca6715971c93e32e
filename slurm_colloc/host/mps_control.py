"""Talking to one MPS control daemon through NVIDIA's control program.

The program's exit status says nothing: 0 for an unknown command, a bad value or a refusal (550 and
580). So answers are read back, and the daemon's log is looked at for the reason. A command can hang
for ever, so each has its own time limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.children import Outcome, run_program
from slurm_colloc.host.directories import Owner

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

# Debian has the server in /usr/sbin; driver containers and some clusters install below
# /usr/local/nvidia. The daemon starts its server along its own PATH.
PROGRAM_DIRECTORIES = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/nvidia/bin",
    "/usr/local/cuda/bin",
    "/opt/nvidia/bin",
)
SYSTEM_PATH = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")

COMMAND_S = 5.0

ACTIVE = "ACTIVE"
INITIALIZING = "INITIALIZING"
FAULT = "FAULT"
EXITED = "EXITED"


@dataclass(frozen=True)
class MpsPrograms:
    """Where NVIDIA's two programs are."""

    control: str
    server: str


def find_programs(path: str = "") -> MpsPrograms:
    """Find the control program and the server.

    Args:
        path: A PATH to look along first.

    Raises:
        NodeError: One of them is missing.
    """
    directories = [*filter(os.path.isabs, path.split(":")), *PROGRAM_DIRECTORIES]
    found = {}
    for name in (CONTROL, SERVER):
        for directory in directories:
            candidate = os.path.join(directory, name)
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                found[name] = candidate
                break
        else:
            raise NodeError(
                f"{name} is not installed: it is neither in PATH nor in "
                f"{', '.join(PROGRAM_DIRECTORIES)}",
                hint="it comes with the NVIDIA driver (Debian: the package nvidia-cuda-mps)",
            )
    return MpsPrograms(found[CONTROL], found[SERVER])


def build_daemon_environment(
    programs: MpsPrograms,
    *,
    gpus: Sequence[str],
    pipe_directory: str,
    log_directory: str,
    added: Mapping[str, str],
) -> dict[str, str]:
    """The whole environment of daemon, server and control program.

    The protocol version is pinned because from r615 on the options of the control program depend
    on it (`-q` is `quit` in version 3, something else in version 2).

    Args:
        programs: Where the programs are.
        gpus: UUIDs.
        pipe_directory: The daemon's sockets.
        log_directory: Its logs.
        added: What the caller adds, such as the place of a simulated GPU.
    """
    own = (os.path.dirname(programs.control), os.path.dirname(programs.server))
    return {
        "LANG": "C",
        **added,
        "PATH": ":".join(dict.fromkeys((*own, *SYSTEM_PATH))),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
        "CUDA_MPS_LOG_DIRECTORY": log_directory,
        "CUDA_MPS_PROTOCOL_VERSION": "2",
    }


def find_library_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Where the user's programs find the driver's libcuda, if only LD_LIBRARY_PATH says so.

    In some containers nothing else leads there, and from 580 on the daemon itself needs it. No
    other directory of that variable is passed on; CUDA's stubs hold no libcuda.so.1.

    Args:
        environ: The user's environment.
    """
    directories = [
        directory
        for directory in environ.get("LD_LIBRARY_PATH", "").split(":")
        if os.path.isabs(directory) and os.path.isfile(os.path.join(directory, "libcuda.so.1"))
    ]
    return {"LD_LIBRARY_PATH": ":".join(directories)} if directories else {}


@dataclass(frozen=True)
class Peer:
    """Who listens on a socket, as the kernel says."""

    pid: int
    uid: int
    gid: int


def read_peer(pipe_directory: str) -> Peer | None:
    """Ask the kernel who listens on the daemon's socket; None where nobody does yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(f"{pipe_directory}/control")
        except OSError:
            return None
        size = struct.calcsize("3i")
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return Peer(*struct.unpack("3i", data))


@dataclass(frozen=True)
class Client:
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


class ControlProgram:
    """One daemon's control program.

    Args:
        programs: Where the programs are.
        environment: As `build_daemon_environment` made it.
        owner: As root: whom to become, so that a command has the user's rights only.
    """

    def __init__(
        self, programs: MpsPrograms, environment: Mapping[str, str], owner: Owner | None = None
    ) -> None:
        self._programs = programs
        self._environment = environment
        self._owner = owner

    def ask(self, command: str, timeout_s: float = COMMAND_S) -> Outcome:
        """Send one command and take the answer as it is."""
        try:
            return run_program(
                [self._programs.control],
                self._environment,
                text=f"{command}\n",
                timeout_s=timeout_s,
                owner=self._owner,
            )
        except OSError as error:
            text = f"{self._programs.control} cannot be started: {error.strerror}"
            return Outcome(None, "", "", 0.0, text)

    def read_servers(self, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of the servers; None where the daemon does not say."""
        return parse_pids(self.ask("get_server_list", timeout_s))

    def read_server_status(self, server_pid: int, timeout_s: float = COMMAND_S) -> str | None:
        """INITIALIZING, ACTIVE or FAULT; None where there is no such server or no answer."""
        return parse_server_status(self.ask(f"get_server_status {server_pid}", timeout_s))

    def read_clients(self, server_pid: int, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of a server's clients; None where the daemon does not say."""
        return parse_pids(self.ask(f"get_client_list {server_pid}", timeout_s))

    def read_snapshot(self) -> tuple[Client, ...]:
        """What `ps` tells of all clients; older daemons have no such command."""
        return parse_ps(self.ask("ps").stdout)


def parse_pids(answer: Outcome) -> tuple[int, ...] | None:
    """Read a list of pids, one a line; None where the answer is anything else."""
    if answer.returncode != 0:
        return None
    words = answer.stdout.split()
    if not all(re.fullmatch(r"\d{1,10}", word) for word in words):
        return None
    return tuple(dict.fromkeys(int(word) for word in words))


def parse_server_status(answer: Outcome) -> str | None:
    """Read a server's status."""
    word = answer.stdout.strip()
    return word if word in (ACTIVE, INITIALIZING, FAULT) else None


def parse_ps(text: str) -> tuple[Client, ...]:
    """Read the table of `ps` by the names of its columns.

    Args:
        text: `PID ID SERVER DEVICE NAMESPACE COMMAND`, one line a context (550, 580).
    """
    columns: list[str] = []
    clients: dict[tuple[int, int], Client] = {}
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
            client = Client(
                pid=int(row["PID"]),
                server_pid=int(row["SERVER"]),
                device=row.get("DEVICE"),
                namespace=int(namespace) if namespace.isdigit() else None,
                command=row.get("COMMAND"),
            )
            clients.setdefault((client.pid, client.server_pid), client)
    return tuple(clients.values())


def parse_percentage(answer: Outcome) -> float | None:
    """Read a thread percentage; None where the answer is no number."""
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
