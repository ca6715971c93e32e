"""What a sandbox should be, where it lives and what it is remembered by.

A sandbox is a private Slurm cluster on one machine: a munged, a slurmctld and several slurmd, all
under one directory and all owned by the user who started them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from slurm_colloc.errors import UsageProblem

ROOT_DIRECTORY = Path("/var/tmp/slurm_colloc_sandbox")
"""Where root's sandbox lives: other users must be able to reach it, so not below /root."""

# sockaddr_un.sun_path holds 108 bytes with the final NUL (unix(7)).
_UNIX_PATH_MAX = 107
# slurmstepd listens on SPOOL/NODE_JOB.STEP; the batch step's number has ten digits.
_LONGEST_STEP = "_99999999.4294967291"


@dataclass(frozen=True)
class SandboxSpec:
    """The wanted cluster.

    Args:
        directory: Everything of the cluster is below it.
        nodes: Number of slurmd.
        gpus_per_node: GPUs of each node, or None: two fake ones, or an even share of the real ones.
        cpus_per_node: CPUs of each node, or None: those of the host, at least eight per GPU.
        host_memory_mb_per_node: What each node claims; more than the host has is allowed.
        fake_gpus: Make device nodes even where the machine has NVIDIA GPUs.
        gpu_type: The GRES type, as in `gpu:TYPE:1`; several, with commas, divide each node's GPUs
            evenly.
        simgpu: Simulate NVML and MPS for the fake GPUs.
        kill_wait_s: Slurm's KillWait, between TERM and KILL at a time limit.
        grace_time_s: GraceTime of the partition `preempt`.
        slurmd_timeout_s: Seconds until a silent node is DOWN.
        requeue_delay_s: Seconds until a requeued job may start again (cred_expire).
        hooks: Let root's prolog and epilog prepare MPS for jobs of csub.
        mig: MIG mode of the simulated GPUs is on from their start, and the hooks may divide them.
        accounting: Keep accounts of jobs, for sacct: slurmdbd with a MariaDB of its own.
        extra_conf: Lines added to slurm.conf, for example `Prolog=/etc/prolog.sh`.
    """

    directory: Path
    nodes: int = 2
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    host_memory_mb_per_node: int | None = None
    fake_gpus: bool = False
    gpu_type: str | None = None
    simgpu: bool = True
    kill_wait_s: int = 5
    grace_time_s: int = 5
    slurmd_timeout_s: int = 30
    requeue_delay_s: int = 10
    hooks: bool = False
    mig: bool = False
    accounting: bool = False
    extra_conf: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            UsageProblem: A number is out of range, a text would break the configuration, or the
                directory's path is too long for a socket.
        """
        limits = {
            "nodes": (self.nodes, 1, 64),
            "gpus-per-node": (self.gpus_per_node, 0, 64),
            "cpus-per-node": (self.cpus_per_node, 1, 65533),
            "memory-per-node": (self.host_memory_mb_per_node, 1, 2**40),
            "kill-wait": (self.kill_wait_s, 1, 65533),
            "grace-time": (self.grace_time_s, 0, 65533),
            "slurmd-timeout": (self.slurmd_timeout_s, 0, 65533),
            "requeue-delay": (self.requeue_delay_s, 5, 65533),
        }
        for name, (value, low, high) in limits.items():
            if value is not None and not low <= value <= high:
                raise UsageProblem(f"--{name} is {value}, it must be between {low} and {high}")
        for gpu_type in (self.gpu_type or "gpu").split(","):
            if not re.fullmatch(r"[A-Za-z][\w.-]{0,39}", gpu_type):
                raise UsageProblem(f"--gpu-type '{gpu_type}' is not a word that Slurm can use")
        if self.hooks and os.geteuid() != 0:
            raise UsageProblem("--hooks needs to be root: hooks prepare MPS for other users")
        if self.mig and not self.simgpu:
            raise UsageProblem("--mig is for simulated GPUs", hint="leave out --no-simgpu")
        for line in self.extra_conf:
            if "\n" in line or "\0" in line:
                raise UsageProblem("a line for slurm.conf must not contain a line break")
        check_directory_name(self.directory)

    def name_gpu_types(self, count: int) -> tuple[str, ...]:
        """The GRES type of each of a node's GPUs, the first ones of the first type; empty for none.

        Args:
            count: How many GPUs the node has.
        """
        types = (self.gpu_type or "").split(",")
        return tuple(types[number * len(types) // count] for number in range(count))

    def to_record(self) -> dict[str, object]:
        """The specification as JSON values."""
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> SandboxSpec:
        """Read what `to_record` wrote; unknown keys are of a newer version and are left out."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["directory"] = Path(str(record["directory"]))
        extra = values.get("extra_conf")
        values["extra_conf"] = tuple(extra) if isinstance(extra, (list, tuple)) else ()
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Layout:
    """The paths of a sandbox. `accounts`, `hooks`, `log` and `state` are not for others."""

    directory: Path

    @property
    def etc(self) -> Path:
        """Configuration, readable for all users, and the munge key, which is not."""
        return self.directory / "etc"

    @property
    def slurm_conf(self) -> Path:
        """The value of SLURM_CONF; also the mark by which the daemons are recognised."""
        return self.etc / "slurm.conf"

    @property
    def munge_key(self) -> Path:
        """The secret of this cluster."""
        return self.etc / "munge.key"

    @property
    def run(self) -> Path:
        """Pid files and munged's socket."""
        return self.directory / "run"

    @property
    def munge_socket(self) -> Path:
        """The socket that every user's Slurm command talks to."""
        return self.run / "munge.sock"

    @property
    def state(self) -> Path:
        """The controller's jobs and nodes."""
        return self.directory / "state"

    @property
    def log(self) -> Path:
        """The daemons' logs."""
        return self.directory / "log"

    @property
    def spool(self) -> Path:
        """One directory per node, with job scripts and the steps' sockets."""
        return self.directory / "spool"

    @property
    def dev(self) -> Path:
        """Device nodes of the fake GPUs."""
        return self.directory / "dev"

    @property
    def simgpu(self) -> Path:
        """The simulation of the fake GPUs."""
        return self.directory / "simgpu"

    @property
    def no_simulation(self) -> Path:
        """Why the fake GPUs are not simulated, where they should be."""
        return self.run / "no_simulation"

    @property
    def hooks(self) -> Path:
        """Prolog, epilog and their policy."""
        return self.directory / "hooks"

    @property
    def prepared(self) -> Path:
        """What the hooks have prepared, a directory for each node."""
        return self.directory / "prepared"

    @property
    def accounts(self) -> Path:
        """The database, which asks for no password."""
        return self.directory / "accounts"

    @property
    def database_socket(self) -> Path:
        """That of the database; also the mark by which it is recognised."""
        return self.accounts / "socket"

    @property
    def slurmdbd(self) -> Path:
        """A link to the program, by which it is recognised."""
        return self.run / "slurmdbd"

    @property
    def record(self) -> Path:
        """What has to be remembered between two calls."""
        return self.directory / "sandbox.json"

    @property
    def lock(self) -> Path:
        """Held while daemons are started or stopped."""
        return self.directory / "lock"


def check_directory_name(directory: Path) -> None:
    """Refuse a directory whose sockets or configuration lines could not work.

    Raises:
        UsageProblem: The path is relative, too long or holds a character special to Slurm.
    """
    text = str(directory)
    if not directory.is_absolute():
        raise UsageProblem(f"the sandbox directory '{text}' is not an absolute path")
    if not re.fullmatch(r"[\w./+@-]+", text):
        raise UsageProblem(
            f"the sandbox directory '{text}' holds a character that slurm.conf cannot",
            hint="use letters, digits and . _ + @ - only",
        )
    layout = Layout(directory)
    node = choose_node_names(directory, 64, plain=False)[-1]
    longest = max(
        len(os.fsencode(layout.munge_socket)),
        len(os.fsencode(layout.spool / node / f"{node}{_LONGEST_STEP}")),
    )
    if longest > _UNIX_PATH_MAX:
        room = len(os.fsencode(text)) - (longest - _UNIX_PATH_MAX)
        raise UsageProblem(
            f"the sandbox directory '{text}' is {len(os.fsencode(text))} bytes long, and socket "
            f"paths leave room for {room}",
            hint="choose a shorter one with --dir",
        )


def choose_directory(environment: Mapping[str, str], *, is_root: bool) -> Path:
    """The sandbox that the environment speaks of (`csub sandbox env`), else the default one.

    The default of root is open to other users, an ordinary user's is their own.
    """
    used = find_used_directory(environment)
    if used is not None:
        return used
    if is_root:
        return ROOT_DIRECTORY
    state = environment.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = f"{environment.get('HOME') or Path.home()}/.local/state"
    return Path(state) / "slurm_colloc" / "sandbox"


def find_used_directory(environment: Mapping[str, str]) -> Path | None:
    """The sandbox whose SLURM_CONF is set; None where that is another cluster's, or none is."""
    conf = Path(environment.get("SLURM_CONF", ""))
    layout = Layout(conf.parent.parent)
    if not conf.is_absolute() or conf != layout.slurm_conf:
        return None
    # One that was removed is still the one that is meant.
    is_sandbox = layout.record.exists() or not conf.exists()
    return layout.directory if is_sandbox else None


def choose_node_names(directory: Path, count: int, *, plain: bool) -> tuple[str, ...]:
    """Names for the nodes: `node1`, `node2`, or with `plain=False` names of this directory alone.

    slurmd's cgroups and job processes are named after the node, so two clusters with the same
    node names on one machine would get into each other's way.
    """
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:4]
    prefix = "node" if plain else f"n{mark}-"
    return tuple(f"{prefix}{number}" for number in range(1, count + 1))
