"""Whether the node's prolog has prepared an MPS daemon for this pack, and whether it will do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.hooks.checkpoint import DEFAULT_RUN, is_job_id
from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon, PreparedSetup, read_prepared
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.store.pack.node_setup import Setup, write_setup

if TYPE_CHECKING:
    from slurm_colloc.host.mps.mps_options import StopReport
    from slurm_colloc.runtime.gpu.discover_gpus import GpuFinding

RUN_VARIABLE = "SLURM_COLLOC_RUN"
"""Where the hooks of a node work, if not in the usual place; `%n` is the node's name. Whatever it
names is believed only where nobody but root can have written it."""


@dataclass(frozen=True)
class PreparedFinding:
    """What was found.

    Attributes:
        daemon: The daemon to use; None for none.
        notes: Why the node's own is not used, a sentence each; empty where it has prepared nothing.
    """

    daemon: PreparedDaemon | None = None
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """The daemon's GPUs; empty without one."""
        return () if self.daemon is None else self.daemon.gpus


def find_prepared(environ: Mapping[str, str], gpus: Sequence[str]) -> PreparedFinding:
    """Look for what the prolog has prepared.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
        gpus: The pack's GPUs by UUID; empty where they are not known.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not is_job_id(job_id):
        return PreparedFinding()
    run = environ.get(RUN_VARIABLE) or DEFAULT_RUN
    run = run.replace("%n", environ.get("SLURMD_NODENAME", ""))
    try:
        setup = read_prepared(run, job_id)
    except NodeError as error:
        return PreparedFinding(notes=(f"the node's own MPS daemon is not used: {error.message}",))
    if setup is None:
        return PreparedFinding()
    if setup.mode != "mps":
        return PreparedFinding(notes=(f"the node has prepared no MPS: {setup.reason}",))
    daemon, reason = choose_daemon(setup, gpus)
    if daemon is None:
        return PreparedFinding(notes=(f"the node's own MPS daemon is not used: {reason}",))
    return PreparedFinding(daemon)


def choose_daemon(setup: PreparedSetup, gpus: Sequence[str]) -> tuple[PreparedDaemon | None, str]:
    """The daemon that serves all GPUs of the pack, or why there is none; pure.

    Args:
        setup: What root has prepared.
        gpus: The pack's GPUs by UUID; empty where they are not known.
    """
    fits = [daemon for daemon in setup.daemons if not gpus or set(daemon.gpus) == set(gpus)]
    if len(fits) != 1:
        return None, f"none of its {len(setup.daemons)} daemons serves exactly the pack's GPUs"
    return fits[0], ""


class Preparation:
    """Keeps the setup of an attempt.

    Args:
        pack: The pack's directory.
        setup: What is known at the start.
        journal: The pack's log.
    """

    def __init__(self, pack: Path, setup: Setup, journal: Journal) -> None:
        self._pack = pack
        self._journal = journal
        self.setup = setup

    def note_gpu(self, finding: GpuFinding, prepared: tuple[str, ...]) -> None:
        """What NVML says of the pack's GPU.

        Args:
            finding: What it says.
            prepared: The GPUs for which root has prepared a daemon, by UUID.
        """
        gpu = finding.gpu
        self._change(
            gpus=finding.uuids or prepared or self.setup.gpus,
            gpu_memory_mb=gpu.gpu_memory_total_mb if gpu else None,
            gpu_name=gpu.name if gpu else None,
            client_cap=finding.client_cap,
            notes=finding.notes,
        )

    def note_control(self, by: str, control_ms: float, restarts: int) -> None:
        """An MPS daemon answers."""
        self._change(by=by, control_ms=control_ms, stop_ms=None, restarts=restarts)

    def note_stopped(self, report: StopReport) -> None:
        """The daemon has been ended."""
        self._journal.write(
            "mps_stopped",
            ms=report.elapsed_ms,
            forced=report.forced,
            unkillable=report.unkillable,
            left=report.left,
            gpu_processes=report.gpu_processes,
            notes=report.notes,
        )
        if report.unkillable:
            self.add_notes(f"processes that cannot be killed: {_list(report.unkillable)}")
        self.add_notes(*(f"left behind: {text}" for text in report.left))
        if report.gpu_processes:
            self.add_notes(f"still on the GPU: processes {_list(report.gpu_processes)}")
        self.write(stop_ms=report.elapsed_ms)

    def add_notes(self, *notes: str) -> None:
        """What else is worth knowing, a sentence each; none is kept twice."""
        self._change(notes=tuple(dict.fromkeys((*self.setup.notes, *notes))))

    def write(self, **changes: object) -> None:
        """Write it down as it is now, with these fields changed."""
        self._change(**changes)
        with contextlib.suppress(StateError):
            write_setup(self._pack, self.setup)

    def _change(self, **changes: object) -> None:
        self.setup = dataclasses.replace(self.setup, **changes)  # type: ignore[arg-type]


def _list(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))
