"""The sandbox's daemons and job processes: how they are started and how they are recognised."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.host.system.child_programs import collect, start_program
from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    find_ancestors,
    find_descendants,
    list_running_processes,
    read_command_line,
    read_environment,
    read_uid,
)
from slurm_colloc.host.system.signals import end_child
from slurm_colloc_lab.sandbox.cgroups import find_node_groups, find_processes_in_groups
from slurm_colloc_lab.sandbox.installation import Installation
from slurm_colloc_lab.sandbox.sandbox_processes import find_socket_owners
from slurm_colloc_lab.sandbox.sandbox_spec import Layout

_START_S = 30.0
_KILLED_S = 5.0
_TIME_STAMP = re.compile(r"^\[[^\]]*\]\s*|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d+\s+")
_ERROR_WORDS = re.compile(r"error|fatal|denied|failed|cannot", re.IGNORECASE)
_KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ", "USER", "LOGNAME")
_SYSTEM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)


def build_munged_argv(installation: Installation, layout: Layout) -> list[str]:
    """Command line of munged. `--force` takes over the socket of one that was killed."""
    return [
        installation.munged,
        "--force",
        f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}",
        f"--pid-file={layout.run}/munged.pid",
        f"--log-file={layout.log}/munged.log",
        f"--seed-file={layout.run}/munge.seed",
    ]


def build_slurmctld_argv(
    installation: Installation, layout: Layout, *, forget_jobs: bool
) -> list[str]:
    """Command line of slurmctld; `-c` forgets all jobs but goes on counting their ids."""
    forget = ["-c"] if forget_jobs else []
    return [installation.slurmctld, *forget, "-f", str(layout.slurm_conf)]


def build_slurmd_argv(installation: Installation, layout: Layout, node: str) -> list[str]:
    """Command line of one node's slurmd."""
    stepd = ["-d", installation.slurmstepd] if installation.slurmstepd else []
    return [installation.slurmd, *stepd, "-f", str(layout.slurm_conf), "-N", node]


def find_munged(
    layout: Layout, table: Iterable[Process], owner: int | None = None
) -> list[ProcessId]:
    """This sandbox's munged; normally one, none where it is down.

    Args:
        layout: The sandbox's.
        table: The processes.
        owner: Whose sandbox it is; None for the caller's.
    """
    return _find_daemons(table, "munged", {f"--socket={layout.munge_socket}"}, owner)


def find_slurmctld(
    layout: Layout, table: Iterable[Process], owner: int | None = None
) -> list[ProcessId]:
    """This sandbox's slurmctld."""
    return _find_daemons(table, "slurmctld", {str(layout.slurm_conf)}, owner)


def find_slurmd(
    layout: Layout, table: Iterable[Process], node: str, owner: int | None = None
) -> list[ProcessId]:
    """The slurmd of one node of this sandbox."""
    return _find_daemons(table, "slurmd", {str(layout.slurm_conf), node}, owner)


def find_slurmdbd(
    layout: Layout, table: Iterable[Process], owner: int | None = None
) -> list[ProcessId]:
    """This sandbox's slurmdbd, which was started through a link of its own."""
    return _find_daemons(table, str(layout.slurmdbd), set(), owner)


def find_database(
    layout: Layout, table: Iterable[Process], owner: int | None = None
) -> list[ProcessId]:
    """The MariaDB of this sandbox's accounting."""
    mark = {f"--socket={layout.database_socket}"}
    return [
        identity
        for name in ("mariadbd", "mysqld")
        for identity in _find_daemons(table, name, mark, owner)
    ]


def find_all_slurmd(layout: Layout, table: Iterable[Process]) -> list[ProcessId]:
    """Every slurmd of this sandbox, also of nodes that are no longer remembered."""
    return _find_daemons(table, "slurmd", {str(layout.slurm_conf)})


def is_running(layout: Layout, name: str) -> bool:
    """Whether `munged`, `slurmctld` or `slurmd.NODE` of this sandbox runs."""
    table = list_running_processes()
    if name == "munged":
        return bool(find_munged(layout, table))
    if name == "slurmctld":
        return bool(find_slurmctld(layout, table))
    return bool(find_slurmd(layout, table, name.removeprefix("slurmd.")))


def _find_daemons(
    table: Iterable[Process], name: str, arguments: set[str], owner: int | None = None
) -> list[ProcessId]:
    owner = os.geteuid() if owner is None else owner
    names = {name, f"{name}-wlm"}
    found = [
        process.id
        for process in table
        if (argv := read_command_line(process.id.pid))
        and (argv[0] == name or Path(argv[0]).name in names)
        and arguments <= set(argv[1:])
        and read_uid(process.id.pid) == owner
    ]
    # A child that a daemon has just forked looks like it until its exec; the oldest comes first.
    return sorted(found, key=lambda identity: identity.start_ticks)


def find_job_processes(
    layout: Layout, nodes: Sequence[str], table: Sequence[Process]
) -> set[ProcessId]:
    """Steps and jobs of these nodes, found in four ways because each of them has a gap.

    A slurmstepd is known by its socket in the spool directory, tasks by descent from it or from
    slurmd, what outlived its parents by the node's cgroup or by the environment that Slurm gave
    to it. This process and its ancestors are never among them.
    """
    by_pid = {process.id.pid: process.id for process in table}
    spools = tuple(f"{layout.spool / node}/" for node in nodes)
    found = {
        identity
        for identity, path in find_socket_owners(layout.spool, table).items()
        if path.startswith(spools)
    }
    daemons = {identity for node in nodes for identity in find_slurmd(layout, table, node)}
    for pid in find_processes_in_groups(find_node_groups(nodes)):
        if pid in by_pid:
            found.add(by_pid[pid])
    for process in table:
        environment = read_environment(process.id.pid)
        if (
            environment.get("SLURM_CONF") == str(layout.slurm_conf)
            and environment.get("SLURMD_NODENAME") in nodes
        ):
            found.add(process.id)
    found |= find_descendants(found | daemons, table)
    own_line = find_ancestors(os.getpid(), table)
    return {identity for identity in found - daemons if identity.pid not in own_line}


def build_daemon_environment(environment: Mapping[str, str], layout: Layout) -> dict[str, str]:
    """What a daemon starts with: nothing of the caller's Slurm job, and the system's PATH."""
    kept = {name: environment[name] for name in _KEPT_VARIABLES if name in environment}
    path = kept.get("PATH", "").split(os.pathsep)
    missing = [directory for directory in _SYSTEM_DIRECTORIES if directory not in path]
    kept["PATH"] = os.pathsep.join([entry for entry in path if entry] + missing)
    kept["SLURM_CONF"] = str(layout.slurm_conf)
    return kept


def start_daemon(
    name: str, argv: Sequence[str], layout: Layout, variables: Mapping[str, str] | None = None
) -> None:
    """Start a daemon that puts itself into the background, and wait until it has done so.

    Args:
        name: What messages and the log file call it, for example `slurmd.node1`.
        argv: Its command line.
        layout: Where its log is.
        variables: What it finds in its environment, besides what all daemons do.

    Raises:
        SlurmError: It refused to start.
    """
    # A daemon would keep a pipe open: its messages go into a file.
    with (layout.log / f"{name}.stderr").open("wb") as stderr:
        try:
            child = start_program(
                argv,
                {**build_daemon_environment(os.environ, layout), **(variables or {})},
                stderr=stderr.fileno(),
                own_session=True,
                umask=0o022,
            )
        except OSError as error:
            raise SlurmError(f"{argv[0]} cannot be run ({error.strerror})", argv=argv) from error
    returncode = collect(child, _START_S)
    if returncode is None:
        end_child(child.pid)
        collect(child, _KILLED_S)
    if returncode != 0:
        raise build_daemon_error(name, argv, layout, returncode)


def build_daemon_error(
    name: str, argv: Sequence[str], layout: Layout, returncode: int | None = None
) -> SlurmError:
    """The exception for a daemon that is not there, with the reason from its log."""
    log = layout.log / f"{name}.log"
    stderr = layout.log / f"{name}.stderr"
    reason = find_last_error(read_tail(stderr)) or find_last_error(read_tail(log))
    return SlurmError(
        f"{name} of the sandbox died at its start ({reason or 'it left no error message'})",
        hint=f"see {log}",
        argv=argv,
        returncode=returncode,
        stderr=read_tail(stderr),
    )


def find_last_error(text: str) -> str:
    """The last line of a log that tells of an error, without its time stamp.

    `Unable to process configuration file` comes after the line that says what is wrong with it.
    """
    plain = [_TIME_STAMP.sub("", line).strip() for line in text.splitlines()]
    plain = [line for line in plain if line and "Unable to process configuration" not in line]
    told = [line for line in plain if _ERROR_WORDS.search(line)]
    return (told or plain or [""])[-1]


def read_tail(path: Path, size: int = 8000) -> str:
    """The last bytes of a log, or nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


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
    """Whether a process listens on this TCP port.

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
