"""A sandbox's accounting: a MariaDB of its own and slurmdbd, so that sacct knows of ended jobs.

The database listens on a socket alone and asks for no password, so it lies in a directory that only
its owner can enter.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import SlurmError, SlurmUnreachable
from slurm_colloc.host.system.child_programs import run_program
from slurm_colloc.host.system.node_processes import list_running_processes
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.installation import DAEMON_DIRECTORIES
from slurm_colloc_lab.sandbox.sandbox_files import make_directory
from slurm_colloc_lab.sandbox.sandbox_processes import wait_until
from slurm_colloc_lab.sandbox.sandbox_record import write_file
from slurm_colloc_lab.sandbox.sandbox_spec import Layout
from slurm_colloc_lab.sandbox.sandbox_status import run_command

_TABLES = (
    Path("/usr/share/mysql/mysql_system_tables.sql"),
    # MariaDB 11 and later.
    Path("/usr/share/mariadb/mariadb_system_tables.sql"),
)
_OPTIONS = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",
    "--skip-log-bin",
    "--innodb-buffer-pool-size=32M",
    # What is tried out here need not outlive the machine.
    "--innodb-flush-log-at-trx-commit=0",
)
_START_S = 60.0
_CLUSTER = "sandbox"


@dataclass(frozen=True)
class AccountingPrograms:
    """Paths of the programs, and of MariaDB's own tables."""

    database: str
    tables: Path
    slurmdbd: str


def find_accounting_programs(environment: Mapping[str, str]) -> AccountingPrograms:
    """Look for slurmdbd and MariaDB in PATH and in the usual places.

    Raises:
        SlurmUnreachable: One is missing.
    """
    path = os.pathsep.join((environment.get("PATH", os.defpath), *DAEMON_DIRECTORIES))
    slurmdbd = shutil.which("slurmdbd", path=path)
    database = shutil.which("mariadbd", path=path) or shutil.which("mysqld", path=path)
    tables = next((file for file in _TABLES if file.exists()), None)
    if slurmdbd is None or database is None or tables is None:
        missing = " and ".join(
            ([] if slurmdbd else ["slurmdbd"]) + ([] if database and tables else ["MariaDB server"])
        )
        raise SlurmUnreachable(
            f"no {missing} on this machine, and --accounting needs both slurmdbd and a MariaDB "
            "server",
            hint="install them (Debian, Ubuntu: slurmdbd mariadb-server-core; Fedora, EPEL: "
            "slurm-slurmdbd mariadb-server), or leave out --accounting",
        )
    return AccountingPrograms(database, tables, slurmdbd)


def start_accounting(layout: Layout, port: int, plugin_directory: str | None) -> tuple[str, ...]:
    """Start of database and slurmdbd what does not run; their names. munged has to run.

    Raises:
        SlurmError: One does not start.
        SlurmUnreachable: A program is missing.
    """
    table = list_running_processes()
    has_database = bool(daemons.find_database(layout, table))
    has_slurmdbd = bool(daemons.find_slurmdbd(layout, table))
    if has_database and has_slurmdbd:
        return ()
    programs = find_accounting_programs(os.environ)
    started = []
    if not has_database:
        _start_database(layout, programs)
        started.append("database")
    if not has_slurmdbd:
        _start_slurmdbd(layout, programs, port, plugin_directory)
        started.append("slurmdbd")
    known = run_command(layout, ["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"])
    if _CLUSTER not in known.split():
        run_command(layout, ["sacctmgr", "-i", "-Q", "add", "cluster", _CLUSTER])
    return tuple(started)


def render_slurmdbd_conf(layout: Layout, port: int, plugin_directory: str | None) -> str:
    """The whole of slurmdbd.conf, which slurmdbd looks for next to slurm.conf."""
    owner = pwd.getpwuid(os.geteuid()).pw_name
    lines = [
        "# Written by 'csub sandbox up', which writes it anew at each start.",
        f"DbdHost={socket.gethostname().partition('.')[0]}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={port}",
        f"SlurmUser={owner}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        *([f"PluginDir={plugin_directory}"] if plugin_directory else []),
        f"PidFile={layout.run}/slurmdbd.pid",
        f"LogFile={layout.log}/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        # The client library takes this name for the socket in MYSQL_UNIX_PORT.
        "StorageHost=localhost",
        f"StorageUser={owner}",
        "StorageLoc=accounts",
        # What is asked of it is asked at once.
        "CommitDelay=0",
    ]
    return "\n".join(lines) + "\n"


def _start_database(layout: Layout, programs: AccountingPrograms) -> None:
    make_directory(layout.accounts, 0o700)
    data = layout.accounts / "data"
    owner = pwd.getpwuid(os.geteuid()).pw_name
    argv = [programs.database, *_OPTIONS, f"--user={owner}"]
    if not data.exists():
        _make_tables(layout, argv, programs.tables)
    argv += [f"--datadir={data}", f"--socket={layout.database_socket}"]
    layout.database_socket.unlink(missing_ok=True)
    # It puts itself into no background.
    daemons.start_daemon("database", ["/bin/sh", "-c", '"$@" &', "sh", *argv], layout)
    if not wait_until(layout.database_socket.exists, _START_S):
        raise daemons.build_daemon_error("database", argv, layout)


def _make_tables(layout: Layout, argv: list[str], tables: Path) -> None:
    """Without its own tables it knows no procedures, and slurmdbd makes some."""
    unfinished = layout.accounts / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    make_directory(unfinished, 0o700)
    script = layout.accounts / "tables.sql"
    write_file(script, b"CREATE DATABASE mysql;\nUSE mysql;\n" + tables.read_bytes(), mode=0o600)
    making = [*argv, f"--datadir={unfinished}", "--bootstrap"]
    ended = run_program(
        ["/bin/sh", "-c", 'exec "$@" <"$0"', str(script), *making],
        daemons.build_daemon_environment(os.environ, layout),
        timeout_s=_START_S,
    )
    if ended.returncode != 0:
        reason = daemons.find_last_error(ended.stderr) or "it left no error message"
        raise SlurmError(
            f"the database of the sandbox cannot make its tables ({reason})",
            argv=making,
            returncode=ended.returncode,
            stderr=ended.stderr,
        )
    unfinished.rename(layout.accounts / "data")


def _start_slurmdbd(
    layout: Layout, programs: AccountingPrograms, port: int, plugin_directory: str | None
) -> None:
    conf = render_slurmdbd_conf(layout, port, plugin_directory)
    write_file(layout.etc / "slurmdbd.conf", conf, mode=0o600)
    # Nothing else in its command line says whose it is.
    layout.slurmdbd.unlink(missing_ok=True)
    layout.slurmdbd.symlink_to(programs.slurmdbd)
    argv = [str(layout.slurmdbd)]
    variables = {"MYSQL_UNIX_PORT": str(layout.database_socket)}
    daemons.start_daemon("slurmdbd", argv, layout, variables)

    def is_answering() -> bool:
        # It listens before its tables are made.
        if not daemons.is_port_listening(port):
            return False
        try:
            run_command(layout, ["sacctmgr", "-n", "show", "qos"], timeout_s=5.0)
        except SlurmError:
            return False
        return True

    if not wait_until(is_answering, _START_S, poll_s=0.1):
        raise daemons.build_daemon_error("slurmdbd", argv, layout)
