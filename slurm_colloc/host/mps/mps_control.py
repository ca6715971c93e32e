"""Talking to one MPS control daemon through NVIDIA's control program.

The program's exit status says nothing: 0 for an unknown command, a bad value or a refusal (550 and
580). So answers are read back, and the daemon's log is looked at for the reason. A command can hang
for ever, so each has its own time limit. A daemon serves one control program at a time; how that is
told from an empty answer stands at `ControlProgram.ask`.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_answers import ListedClient, parse_ps
from slurm_colloc.host.system.child_programs import Outcome, run_program
from slurm_colloc.host.system.own_directory import Owner

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
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2

# No answer of another command looks like this one's, a number with a point.
_PROOF = "get_default_active_thread_percentage"

BUSY = "the MPS daemon serves another control program"
_BROKE_OFF = "the answer broke off"

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
        added: What the caller adds, such as the node's name.
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
    """Ask the kernel who listens on the daemon's socket; None where no process does yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(f"{pipe_directory}/control")
        except OSError:
            return None
        size = struct.calcsize("3i")
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return Peer(*struct.unpack("3i", data))


class ControlProgram:
    """One daemon's control program.

    Args:
        programs: Where the programs are.
        environment: As `build_daemon_environment` made it.
        owner: As root: whom to become, so that a command has the user's rights only.
    """

    def __init__(
        self,
        programs: MpsPrograms,
        environment: Mapping[str, str],
        owner: Owner | None = None,
    ) -> None:
        self._programs = programs
        self._environment = environment
        self._owner = owner

    def ask(self, command: str, timeout_s: float = COMMAND_S) -> Outcome:
        """Send one command and take its answer.

        While the daemon serves one control program, such as one in a member's own script, it turns
        all others away without a word and often with exit status 0 (550, 580): that looks like the
        answer that there is no server or no client. So a second command follows, which is always
        answered; without its answer the question is asked again.

        Args:
            command: One line.
            timeout_s: How long it may take in all.

        Returns:
            The command's own answer; with a `problem` where there is none, which is BUSY where the
            daemon did not listen.
        """
        started = time.monotonic()
        left_s, pause_s, is_busy = timeout_s, _PAUSE_S, False
        while True:
            outcome = self._run(f"{command}\n{_PROOF}\n", left_s)
            *answer, last = outcome.stdout.splitlines(keepends=True) or [""]
            if re.fullmatch(r"\d+\.\d+\s*", last):
                return replace(outcome, stdout="".join(answer))
            if was_turned_away(outcome):
                is_busy = True
            elif not outcome.problem:
                words = outcome.stderr.strip() or _BROKE_OFF
                return replace(outcome, returncode=outcome.returncode or None, problem=words)
            elif not is_busy:
                return outcome
            left_s = started + timeout_s - time.monotonic() - pause_s
            if left_s <= 0:
                return Outcome(None, "", "", time.monotonic() - started, BUSY)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def quit(self, timeout_s: float) -> Outcome:
        """Ask the daemon to end, and to send servers that do not end one SIGINT after a second.

        The answer tells nothing: it may be lost, and it is empty too where the daemon turns this
        program away. Only the end of the daemon's process counts.
        """
        return self._run("quit -t 1\n", timeout_s)

    def _run(self, text: str, timeout_s: float) -> Outcome:
        try:
            return run_program(
                [self._programs.control],
                self._environment,
                text=text,
                timeout_s=timeout_s,
                owner=self._owner,
            )
        except OSError as error:
            problem = f"{self._programs.control} cannot be started: {error.strerror}"
            return Outcome(None, "", "", 0.0, problem)

    def read_servers(self, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of the servers; None where the daemon does not say."""
        return parse_pids(self.ask("get_server_list", timeout_s))

    def read_server_status(self, server_pid: int, timeout_s: float = COMMAND_S) -> str | None:
        """INITIALIZING, ACTIVE or FAULT; None where there is no such server or no answer."""
        return parse_server_status(self.ask(f"get_server_status {server_pid}", timeout_s))

    def read_clients(self, server_pid: int, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of a server's clients; None where the daemon does not say."""
        return parse_pids(self.ask(f"get_client_list {server_pid}", timeout_s))

    def read_snapshot(self) -> tuple[ListedClient, ...]:
        """What `ps` tells of all clients; older daemons have no such command."""
        return parse_ps(self.ask("ps").stdout)


def was_turned_away(outcome: Outcome) -> bool:
    """Whether the daemon has not listened, because it serves another control program.

    Of 2000 attempts on 550 a third had exit status 0, the others 1, and three of those no text.
    """
    return (
        outcome.returncode in (0, 1)
        and not outcome.stdout
        and (not outcome.stderr or "Cannot send command" in outcome.stderr)
    )


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
