"""A sandbox with accounting, whose slurmdbd can be asked, stopped and started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.accounting import find_accounting_programs
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_record import read_record

from ..bed import require_slurm, running_sandbox
from ..wait_until import wait_until

PATIENCE_S = 60.0
ENFORCED = "AccountingStorageEnforce=associations,limits,qos"


def require_accounting() -> None:
    """Skip the test where the machine lacks a program."""
    require_slurm()
    try:
        find_accounting_programs(os.environ)
    except SlurmUnreachable as problem:
        pytest.skip(str(problem))


@dataclasses.dataclass(frozen=True)
class Accounting:
    """What keeps the accounts of a sandbox."""

    sandbox: Sandbox

    def administrate(self, commands: Sequence[str]) -> None:
        """Let one sacctmgr do things to the accounting."""
        ended = self._ask("--immediate", "--quiet", given="".join(f"{c}\n" for c in commands))
        assert (ended.returncode, ended.stderr) == (0, ""), (ended.stdout, ended.stderr)

    @property
    def slurmdbd_pid(self) -> int:
        """To stop and continue it by signals."""
        (pid,) = [d.pid for d in self.sandbox.status().daemons if d.name == "slurmdbd"]
        assert pid is not None
        return pid

    def stop_slurmdbd(self) -> None:
        """End slurmdbd alone."""
        pid = self.slurmdbd_pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: identify(pid) is None, "slurmdbd has ended")

    def start_slurmdbd(self, *settings: str) -> None:
        """Start slurmdbd once more.

        Args:
            settings: Lines of slurmdbd.conf on top, such as `PrivateData=jobs`.
        """
        assert self.sandbox.up().started == ("slurmdbd",)
        if not settings:
            return
        self.stop_slurmdbd()
        layout = self.sandbox.layout
        with (layout.etc / "slurmdbd.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in settings)
        variables = {"MYSQL_UNIX_PORT": str(layout.database_socket)}
        daemons.start_daemon("slurmdbd", [str(layout.slurmdbd)], layout, variables)
        wait_until(lambda: self._ask("show", "qos").returncode == 0, "slurmdbd answers")

    def _ask(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sacctmgr", *words], env=self.sandbox.env(), input=given, capture_output=True,
            text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip


@contextlib.contextmanager
def running_accounting(
    *, prepare: Sequence[str] = (), conf: Sequence[str] = ()
) -> Iterator[tuple[Accounting, Sandbox]]:
    """A sandbox that keeps accounts, and starts no job without an account.

    Args:
        prepare: Commands for sacctmgr, of which the controller knows before it is used.
        conf: Lines of slurm.conf on top.
    """
    require_accounting()
    with running_sandbox(cpus_per_node=16, accounting=True) as sandbox:
        accounting = Accounting(sandbox)
        accounting.administrate(prepare)
        # Partitions may name what is only known now.
        record = read_record(sandbox.layout.record)
        assert record is not None
        extra = (*record.spec.extra_conf, ENFORCED, *conf)
        sandbox.down()
        sandbox.up(dataclasses.replace(record.spec, extra_conf=extra))
        yield accounting, sandbox
