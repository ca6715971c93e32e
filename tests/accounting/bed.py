"""A private accounting: a database and a slurmdbd, for a sandbox whose controller writes to it.

The database listens on a socket alone and asks for no password, so it lies in a directory
that only its owner can enter. munged's socket is for every user of the cluster.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.daemons import choose_free_ports, is_port_listening
from slurm_colloc_lab.sandbox.installation import find_installation

from ..cluster.conftest import require_slurm, running_sandbox

PATIENCE_S = 60.0
POLL_S = 0.05
TABLES = (
    Path("/usr/share/mysql/mysql_system_tables.sql"),
    # MariaDB 11 and later.
    Path("/usr/share/mariadb/mariadb_system_tables.sql"),
)
STARTING = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",
    "--skip-log-bin",
    "--innodb-buffer-pool-size=32M",
    # A machine that fails takes the tests with it.
    "--innodb-flush-log-at-trx-commit=0",
)
DATABASE = ("mariadbd", "mysqld")
SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


@dataclass(frozen=True)
class Programs:
    """What an accounting is made of, and Slurm's own munged."""

    database: str
    tables: Path
    slurmdbd: str
    munged: str


def require_accounting() -> Programs:
    """The programs; skips the test where the machine lacks one."""
    require_slurm()
    database = next((found for name in DATABASE if (found := shutil.which(name, path=SBIN))), None)
    slurmdbd = shutil.which("slurmdbd", path=SBIN)
    tables = next((path for path in TABLES if path.exists()), None)
    if database is None or tables is None:
        pytest.skip("no MariaDB server on this machine (Debian: mariadb-server-core)")
    if slurmdbd is None or shutil.which("sacctmgr") is None:
        pytest.skip("no slurmdbd on this machine (Debian: slurmdbd)")
    return Programs(database, tables, slurmdbd, find_installation(os.environ).munged)


class Accounting:
    """A database, a munged and a slurmdbd of their own, by their process ids.

    Args:
        directory: An empty directory that all can enter.
        programs: What to start.
    """

    def __init__(self, directory: Path, programs: Programs) -> None:
        self.directory = directory
        self.programs = programs
        self.port = choose_free_ports(1)[0]
        self.key = os.urandom(128)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def socket(self) -> Path:
        """That of the database, which only the owner can reach."""
        return self.directory / "database" / "socket"

    @property
    def munge_socket(self) -> Path:
        """That of the accounting's own munged, which has the cluster's key."""
        return self.directory / "munge.sock"

    @property
    def slurm_conf(self) -> tuple[str, ...]:
        """Lines for the slurm.conf of a cluster that keeps its accounts here."""
        return (
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.port}",
            # With munge this is no password but the socket (slurm.conf(5)).
            f"AccountingStoragePass={self.munge_socket}",
            "AccountingStorageTRES=gres/gpu",
            "AccountingStorageEnforce=associations,limits,qos",
        )

    def start(self) -> None:
        """Start all three, and wait until slurmdbd can be asked."""
        data = self.directory / "database" / "data"
        self.socket.parent.mkdir(mode=0o700)
        data.mkdir()
        as_whom = f"--user={pwd.getpwuid(os.geteuid()).pw_name}"
        starting = (self.programs.database, *STARTING, as_whom, f"--datadir={data}")
        # Without its own tables it knows no procedures, and slurmdbd makes some.
        with (self.directory / "bootstrap.out").open("wb") as out:
            subprocess.run(
                [*starting, "--bootstrap"],
                input=b"CREATE DATABASE mysql;\nUSE mysql;\n" + self.programs.tables.read_bytes(),
                stdout=out, stderr=out, check=True, timeout=PATIENCE_S,
            )  # fmt: skip
        self._start("database", [*starting, f"--socket={self.socket}"])
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        self._start(
            "munged",
            [
                self.programs.munged, "--foreground", "--force", f"--key-file={key}",
                f"--socket={self.munge_socket}", f"--pid-file={self.directory}/munged.pid",
                f"--log-file={self.directory}/munge.log", f"--seed-file={self.directory}/seed",
            ],
        )  # fmt: skip
        self._wait("its sockets", lambda: self.socket.exists() and self.munge_socket.exists())
        self.start_slurmdbd()

    def start_slurmdbd(self, *settings: str) -> None:
        """Start slurmdbd, also once more.

        Args:
            settings: Lines of slurmdbd.conf on top, such as `PrivateData=jobs`.
        """
        # slurmdbd looks for its configuration next to slurm.conf, which it does not read itself.
        conf = self.directory / "slurmdbd.conf"
        conf.touch(mode=0o600)
        owner = pwd.getpwuid(os.geteuid()).pw_name
        lines = (
            f"DbdHost={socket.gethostname().partition('.')[0]}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={self.port}",
            f"SlurmUser={owner}",
            f"AuthInfo=socket={self.munge_socket}",
            f"PidFile={self.directory}/slurmdbd.pid",
            f"LogFile={self.directory}/slurmdbd.log",
            "StorageType=accounting_storage/mysql",
            # The client library takes this name for the socket in MYSQL_UNIX_PORT.
            "StorageHost=localhost",
            f"StorageUser={owner}",
            "StorageLoc=accounts",
            # What is asked of it is asked at once.
            "CommitDelay=0",
            *settings,
        )
        conf.write_text("\n".join(lines) + "\n")
        self._client_conf.write_text(
            "ClusterName=sandbox\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n"
            "NodeName=n1\n" + "".join(f"{line}\n" for line in self.slurm_conf)
        )
        environment = {**self._environment, "MYSQL_UNIX_PORT": str(self.socket)}
        self._start("slurmdbd", [self.programs.slurmdbd, "-D"], environment)
        # It listens before its tables are made.
        self._wait("its port", lambda: is_port_listening(self.port))
        self._wait("an answer", lambda: self._ask("show", "qos").returncode == 0)

    def administrate(self, commands: Sequence[str]) -> None:
        """Let one sacctmgr do things to the accounting, without a cluster."""
        ended = self._ask("--immediate", "--quiet", given="".join(f"{c}\n" for c in commands))
        assert (ended.returncode, ended.stderr) == (0, ""), (ended.stdout, ended.stderr)

    def stop_slurmdbd(self) -> None:
        """End slurmdbd alone."""
        self._stop("slurmdbd")

    @property
    def slurmdbd_pid(self) -> int:
        """To stop and continue it by signals."""
        return self._running["slurmdbd"].pid

    def stop(self) -> None:
        """End what runs, slurmdbd first."""
        for name in reversed(list(self._running)):
            self._stop(name)

    @property
    def _client_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._client_conf)}

    def _ask(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sacctmgr", *words], env=self._environment, input=given, capture_output=True,
            text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    def _start(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        with (self.directory / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )

    def _stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            dead = [name for name, process in self._running.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = (
                    f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                    for path in sorted(self.directory.glob("*.out"))
                )
                pytest.fail(f"{what}: {dead or 'not there in time'}\n" + "\n".join(logs))
            time.sleep(POLL_S)


@contextlib.contextmanager
def running_accounting(
    *, prepare: Sequence[str] = (), conf: Sequence[str] = ()
) -> Iterator[tuple[Accounting, Sandbox]]:
    """A sandbox that keeps accounts, taken down at the end with its accounting.

    Args:
        prepare: Commands for sacctmgr before the cluster starts, which reads all of it then.
        conf: Lines of slurm.conf on top.
    """
    programs = require_accounting()
    directory = Path(tempfile.mkdtemp(prefix="ac", dir="/var/tmp"))
    directory.chmod(0o755)
    accounting = Accounting(directory, programs)
    try:
        accounting.start()
        accounting.administrate(("add cluster sandbox", *prepare))
        with running_sandbox(
            munge_key=accounting.key, cpus_per_node=16, extra_conf=(*accounting.slurm_conf, *conf)
        ) as sandbox:
            yield accounting, sandbox
    finally:
        accounting.stop()
        shutil.rmtree(directory, ignore_errors=True)
