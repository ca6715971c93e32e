"""Asking the sandbox's own controller."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError
from slurm_colloc.sandbox import daemons
from slurm_colloc.sandbox.installation import find_installation
from slurm_colloc.sandbox.processes import run_program
from slurm_colloc.sandbox.record import SandboxRecord
from slurm_colloc.sandbox.spec import Layout
from slurm_colloc.sandbox.status import NodeStatus, parse_nodes

_COMMAND_S = 15.0


def run_command(layout: Layout, argv: Sequence[str], timeout_s: float = _COMMAND_S) -> str:
    """Run a Slurm command against this cluster; its standard output.

    Raises:
        SlurmError: It failed or gave no answer in time.
    """
    program = str(find_command(argv[0]))
    environment = daemons.build_daemon_environment(os.environ, layout)
    try:
        ended = run_program([program, *argv[1:]], environment=environment, timeout_s=timeout_s)
    except OSError as error:
        raise SlurmError(f"{argv[0]} of the sandbox failed: {error}", argv=argv) from error
    if ended.returncode is None:
        raise SlurmError(
            f"{argv[0]} of the sandbox gave no answer in {timeout_s:.0f} seconds",
            hint=f"see {layout.log}",
            argv=argv,
        )
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SlurmError(
            f"{argv[0]} of the sandbox failed ({reason})",
            hint=f"see {layout.log}",
            argv=argv,
            returncode=ended.returncode,
            stderr=ended.stderr,
        )
    return ended.stdout


def find_command(name: str) -> Path:
    """Path of a user command, also where PATH does not name its directory."""
    found = shutil.which(name)
    return Path(found) if found else Path(find_installation(os.environ).command(name))


def ask_nodes(layout: Layout, record: SandboxRecord, *, answering: bool) -> tuple[NodeStatus, ...]:
    """The nodes as sinfo shows them; `unreachable` where the controller does not answer."""
    silent = tuple(NodeStatus(name, "unreachable", 0, 0, 0) for name in record.node_names)
    if not answering:
        return silent
    try:
        text = run_command(
            layout, ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N|%T|%c|%m|%G|%E"], timeout_s=5.0
        )
    except SlurmError:
        return silent
    return parse_nodes(text) or silent
