"""What a pack's daemon leaves in its directory, so that others can end it when its keeper cannot.

Also: what a pack wants of its MPS daemon, and how a start or a stop went: values only.

The file lies in the private directory itself, which only its maker can write: for root that is
root, so nothing in it comes from the user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.host.mps.mps_control import MpsPrograms
from slurm_colloc.host.system.directories import Owner
from slurm_colloc.host.system.node_processes import ProcessId, read_boot_id, read_pid_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


STATE = "state.json"
SCHEMA = 1
_LIMIT_BYTES = 65536


@dataclass(frozen=True)
class DaemonState:
    """One daemon, for the process that has to end it.

    Args:
        label: Whose it is, for people.
        gpus: UUIDs.
        programs: Where NVIDIA's programs are.
        added: What was added to the daemon's environment.
        keeper: Who looks after it.
        daemon: The daemon; None before it has started.
        servers: Servers that were seen.
        owner: As whom root started it; None where it is the maker's own.
        boot: The boot in which the pids mean something.
        pid_namespace: The pid namespace in which they do.
        made_at: When (seconds since 1970).
    """

    label: str
    gpus: tuple[str, ...]
    programs: MpsPrograms
    added: Mapping[str, str]
    keeper: ProcessId
    daemon: ProcessId | None = None
    servers: tuple[ProcessId, ...] = ()
    owner: Owner | None = None
    boot: str = field(default_factory=read_boot_id)
    pid_namespace: int = field(default_factory=read_pid_namespace)
    made_at: float = field(default_factory=time.time)


def write_state(descriptor: int, state: DaemonState) -> None:
    """Write the state into an open directory, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    value = {
        "schema": SCHEMA,
        "label": state.label,
        "gpus": state.gpus,
        "control": state.programs.control,
        "server": state.programs.server,
        "added": dict(state.added),
        "keeper": _pack(state.keeper),
        "daemon": None if state.daemon is None else _pack(state.daemon),
        "servers": [_pack(server) for server in state.servers],
        "boot": state.boot,
        "pid_namespace": state.pid_namespace,
        "made_at": state.made_at,
    }
    temporary = f"{STATE}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(temporary, flags, 0o600, dir_fd=descriptor)
    with open(opened, "w", encoding="ascii") as file:
        json.dump(value, file)
    os.replace(temporary, STATE, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def read_state(descriptor: int) -> DaemonState | None:
    """Read the state from an open directory; None where there is none yet.

    Raises:
        StateError: It is damaged, or of a newer version.
    """
    try:
        opened = os.open(STATE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{STATE} of an MPS daemon cannot be read: {error.strerror}") from error
    with open(opened, "rb") as file:
        data = file.read(_LIMIT_BYTES)
    try:
        value = json.loads(data.decode("ascii"))
        if value["schema"] > SCHEMA:
            raise StateError(f"{STATE} of an MPS daemon was written by a newer version")
        return _parse(value)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateError(f"{STATE} of an MPS daemon is damaged ({error})") from error


def _pack(process: ProcessId) -> list[int]:
    return [process.pid, process.start_ticks]


def _parse(value: Mapping[str, Any]) -> DaemonState:
    daemon = value["daemon"]
    return DaemonState(
        label=str(value["label"]),
        gpus=tuple(str(gpu) for gpu in value["gpus"]),
        programs=MpsPrograms(str(value["control"]), str(value["server"])),
        added={str(name): str(text) for name, text in value["added"].items()},
        keeper=ProcessId(*map(int, value["keeper"])),
        daemon=None if daemon is None else ProcessId(*map(int, daemon)),
        servers=tuple(ProcessId(*map(int, server)) for server in value["servers"]),
        boot=str(value["boot"]),
        pid_namespace=int(value["pid_namespace"]),
        made_at=float(value["made_at"]),
    )


# ---- What a pack wants of its MPS daemon, and how a start or a stop went: values only ------------

NODE_VARIABLE = "SLURMD_NODENAME"
"""One machine may be several nodes, with GPUs of their own."""


@dataclass(frozen=True)
class MpsOptions:
    """A private daemon for one pack and one set of GPUs.

    Args:
        gpus: UUIDs; daemon and members name GPUs by nothing else.
        bases: Where its directory may lie, best first; empty for the usual ones.
        environment: Added to the daemon's clean environment; see `choose_passed_environment`.
        path: Where NVIDIA's programs are looked for first, as a PATH.
        logs_to: Directory for copies of the logs at the end; None to keep none.
        label: Whose it is, for people.
        starts_server: A server is started at once; else it comes with the first client.
        keeps_server: That one stays; else it only proves that one can be had, and ends again.
        needs_active: Ready means that this server was ACTIVE, not only that the daemon answers.
        control_cap_s: How long the daemon may take to answer.
        active_cap_s: How long a server may take to become ACTIVE.
        orphan_grace_s: How long clients may go on when the runner has died.
        guard_pid: The parent of the runner, which outlives it; as long as it does clients may go
            on for longer than that. 0 for none.
        adopt: Pipe directory of a daemon that root has prepared, to be watched instead of starting
            one; empty for none.
    """

    gpus: tuple[str, ...]
    bases: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    logs_to: str | None = None
    label: str = ""
    starts_server: bool = True
    keeps_server: bool = True
    needs_active: bool = True
    control_cap_s: float = 5.0
    active_cap_s: float = 30.0
    orphan_grace_s: float = 35.0
    guard_pid: int = 0
    adopt: str = ""

    def __post_init__(self) -> None:
        if not self.gpus:
            raise UsageProblem("an MPS daemon needs at least one GPU")
        for gpu in self.gpus:
            if not gpu.startswith(("GPU-", "MIG-")) or "," in gpu:
                raise UsageProblem(f"{gpu!r} is not a GPU's UUID")


def choose_passed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a daemon's clean one has, too, apart from a PATH.

    Args:
        environ: The runner's environment.
    """
    return build_node_environment(environ.get(NODE_VARIABLE, ""))


def build_node_environment(node: str) -> dict[str, str]:
    """The same where only Slurm's name of this node is known; empty for none."""
    return {NODE_VARIABLE: node} if node else {}


@dataclass(frozen=True)
class StopReport:
    """How a daemon was ended.

    Args:
        elapsed_ms: How long it took in all.
        quit_ms: How long `quit` took; None where it was not used or did not answer.
        forced: Signals were needed.
        unkillable: Pids that even SIGKILL does not end, stuck in the kernel (state D). This is the
            one hard failure; directory and state are kept for it.
        gpu_processes: Pids of this daemon's servers and clients that NVML still shows on its GPUs;
            None where NVML cannot be read, and `notes` says why.
        directory_removed: Its directory is gone.
        left: What could not be removed, with reasons.
        logs: Copies of logs.
        notes: What else is worth telling.
    """

    elapsed_ms: float
    quit_ms: float | None = None
    forced: bool = False
    unkillable: tuple[int, ...] = ()
    gpu_processes: tuple[int, ...] | None = None
    directory_removed: bool = False
    left: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Nothing is left in the process table, in the file system or, if known, on the GPU."""
        return not (self.unkillable or self.left or self.gpu_processes) and self.directory_removed


@dataclass(frozen=True)
class Sweeping:
    """What an earlier pack of this user had left on this node.

    Args:
        path: Its directory.
        label: Whose it was.
        report: How it was ended; None where it was left alone.
        reason: Why it was left alone.
    """

    path: str
    label: str
    report: StopReport | None
    reason: str = ""
