"""Talking to one MPS control daemon through NVIDIA's control program.

Also: what NVIDIA's control program prints, read: clients, percentages, limits, complaints; whether
MPS can be used here, and with what limits.

The program's exit status says nothing: 0 for an unknown command, a bad value or a refusal (550 and
580). So answers are read back, and the daemon's log is looked at for the reason. A command can hang
for ever, so each has its own time limit. A daemon serves one control program at a time; how that is
told from an empty answer stands at `ControlProgram.ask`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer
from slurm_colloc.host.system.child_programs import Outcome, run_program
from slurm_colloc.host.system.directories import Owner

# ----
# What NVIDIA's control program prints, read: clients, percentages, limits, complaints; pure.


@dataclass(frozen=True)
class ListedClient:
    """A process that uses the GPU through a server.

    Args:
        pid: Its pid, as seen from here.
        server_pid: The server it is connected to.
    """

    pid: int
    server_pid: int


def parse_percentage(answer: Outcome) -> float | None:
    """Read a thread percentage; None where the answer is not a number."""
    with contextlib.suppress(ValueError):
        return float(answer.stdout.strip())
    return None


def find_complaints(lines: Iterable[str]) -> tuple[str, ...]:
    """Find what the daemon writes to its log only, while the command's answer looks well."""
    return tuple(line for line in lines if _COMPLAINT.search(line))


_COMPLAINT = re.compile(
    r"Invalid|Insufficient privileges|Not enough privilege|Failed to|Unknown command"
    r"|not found|No default pinned|expected between|Internal error|requires?\b",
    re.IGNORECASE,
)


# ---- Talking to one MPS control daemon through NVIDIA's control program --------------------------

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


@dataclass(eq=False)
class ControlProgram:
    """One daemon's control program.

    Attributes:
        programs: Where the programs are.
        environment: As `build_daemon_environment` made it.
        owner: As root: whom to become, so that a command has the user's rights only.
    """

    programs: MpsPrograms
    environment: Mapping[str, str]
    owner: Owner | None = None

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
                return Outcome(None, "", "", BUSY)
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
                [self.programs.control],
                self.environment,
                text=text,
                timeout_s=timeout_s,
                owner=self.owner,
            )
        except OSError as error:
            problem = f"{self.programs.control} cannot be started: {error.strerror}"
            return Outcome(None, "", "", problem)

    def read_servers(self, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of the servers; None where the daemon does not say."""
        return parse_pids(self.ask("get_server_list", timeout_s))

    def read_server_status(self, server_pid: int, timeout_s: float = COMMAND_S) -> str | None:
        """INITIALIZING, ACTIVE or FAULT; None where there is no such server or no answer."""
        return parse_server_status(self.ask(f"get_server_status {server_pid}", timeout_s))

    def read_clients(self, server_pid: int, timeout_s: float = COMMAND_S) -> tuple[int, ...] | None:
        """Pids of a server's clients; None where the daemon does not say."""
        return parse_pids(self.ask(f"get_client_list {server_pid}", timeout_s))


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


# ---- Whether MPS can be used here, and with what limits; pure ------------------------------------

PRE_VOLTA_CLIENTS = 16
VOLTA_CLIENTS = 48
NEWER_CLIENTS = 60
"""Clients of one GPU: NVIDIA's MPS manual (r615); 48 observed on an H200 with CUDA 13.0, where the
49th gets cudaErrorMpsMaxClientsReached."""

CONTEXT_MB = 600
"""What a CUDA context takes of a gpu_memory limit before the first allocation: 0.5 GiB and a little
on an H200, where a limit of 100 MiB left no room for the context itself."""

_OLDEST = (3, 5)
_VOLTA = (7, 0)


@dataclass(frozen=True)
class Support:
    """Whether MPS can be used.

    Args:
        is_possible: It can.
        reason: Why, or why not.
        client_cap: How many processes can be clients of one GPU; None where MPS cannot be used.
        notes: What could not be read, or is worse than it might be.
    """

    is_possible: bool
    reason: str
    client_cap: int | None = None
    notes: tuple[str, ...] = ()


def judge_support(
    programs: MpsPrograms | None, answer: NvmlAnswer, uuids: Sequence[str]
) -> Support:
    """Say whether MPS can be used on some GPUs.

    What NVML does not say speaks against nothing: the daemon's start is the proof.

    Args:
        programs: NVIDIA's programs; None where they are not there.
        answer: What NVML says.
        uuids: The GPUs.
    """
    if programs is None:
        return Support(False, "nvidia-cuda-mps-control is not installed on this node")
    if not uuids:
        return Support(False, "it is not known which GPUs are the job's")
    if len(set(uuids)) != len(uuids):
        return Support(False, f"a GPU is named twice: {', '.join(uuids)}")
    notes: list[str] = []
    caps = []
    for uuid in uuids:
        if uuid.startswith("MIG-"):
            return Support(False, f"{uuid} is a part of a GPU (MIG)")
        gpu = answer.find(uuid)
        if gpu is None:
            why = answer.problem or "NVML does not show it"
            notes.append(f"{uuid} was not checked: {why}")
            caps.append(VOLTA_CLIENTS)
            continue
        refusal = _find_refusal(gpu)
        if refusal:
            return Support(False, f"{uuid} {refusal}")
        capability = gpu.compute_capability
        if capability is not None and capability < _VOLTA:
            notes.append(
                f"{uuid} is older than Volta: MPS has no limits there, and a fault of one member "
                "ends all"
            )
        caps.append(choose_client_cap(capability, answer.cuda_version))
    return Support(
        True, "NVIDIA's programs are there and the GPU allows it", min(caps), tuple(notes)
    )


def _find_refusal(gpu: Gpu) -> str:
    capability = gpu.compute_capability
    if capability is not None and capability < _OLDEST:
        return f"has compute capability {capability[0]}.{capability[1]}, MPS needs 3.5 or more"
    if gpu.mig_enabled:
        return "has MIG on, where programs find nothing but instances"
    if gpu.compute_mode == "PROHIBITED":
        return "is in compute mode PROHIBITED"
    return ""


def choose_client_cap(capability: tuple[int, int] | None, cuda_version: str | None) -> int:
    """How many processes can share one GPU; the smaller number where something is unknown.

    Args:
        capability: The GPU's compute capability.
        cuda_version: The newest CUDA that the driver supports, such as 13.0.
    """
    if capability is not None and capability < _VOLTA:
        return PRE_VOLTA_CLIENTS
    if cuda_version is not None and _parse_version(cuda_version) >= (13, 1):
        return NEWER_CLIENTS
    return VOLTA_CLIENTS


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(".") if word.isdigit())


def compute_default_thread_percentage(degree: int) -> int:
    """What each member may use of the GPU's SMs when it is unknown, in percent.

    Twice the fair share: on an H200 small and medium trainings gain most with it.

    Args:
        degree: Members at the same time.
    """
    return max(1, min(100, 200 // max(1, degree)))


def build_member_environment(
    *,
    gpus: Sequence[str],
    pipe_directory: str,
    thread_percentage: float | None = None,
    gpu_memory_limits_mb: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """What makes a member a client with limits.

    CUDA ignores a percentage beyond its range and a limit above the GPU's memory, and drops every
    limit where one names a GPU that the process cannot see (H200, driver 580; NVIDIA's manual
    r615). So nothing of that kind leaves here.

    Args:
        gpus: UUIDs that the member sees.
        pipe_directory: The daemon's.
        thread_percentage: Share of the SMs it may use; None for no limit.
        gpu_memory_limits_mb: Limit on each GPU, in MiB, the CUDA context included; GPUs that the
            member does not see are left out.

    Raises:
        UsageProblem: A limit is out of range.
    """
    if not gpus:
        raise UsageProblem("a member under MPS needs at least one GPU")
    if thread_percentage is not None and not 0 < thread_percentage <= 100:
        raise UsageProblem(
            f"a thread percentage is above 0 and at most 100, not {thread_percentage:g}"
        )
    limits = []
    for gpu, limit_mb in (gpu_memory_limits_mb or {}).items():
        if limit_mb < CONTEXT_MB:
            raise UsageProblem(
                f"a gpu_memory limit of {limit_mb} MiB leaves no room for the CUDA context",
                hint=f"give {CONTEXT_MB} MiB at least",
            )
        if gpu in gpus:
            limits.append(f"{gpu}={limit_mb}M")
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
    }
    if thread_percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{thread_percentage:g}"
    if limits:
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
    return environment
