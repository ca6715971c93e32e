"""The MPS daemon over the pack's GPUs, as the pack sees it: where clients find it, who they are.

What it says goes into the attempt's setup and the mode that holds. What starts it
(runtime.pack_daemon) is loaded only where it is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.mps_clients import MpsClients
from slurm_colloc.runtime.settled_mode import GpuPatience, SettledMode
from slurm_colloc.runtime.setup_record import SetupRecord

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon
    from slurm_colloc.host.mps.mps_state import StopReport
    from slurm_colloc.runtime.discover_gpus import BackgroundCall
    from slurm_colloc.runtime.pack_daemon import PackDaemon


class GpuDaemon:
    """Starts the daemon, and hears what becomes of it (`pack_daemon.DaemonListener`).

    Args:
        pack: The pack's directory.
        allocation: What Slurm gave.
        settled: The mode.
        preparation: The attempt's setup.
        journal: The pack's log.
        patience: How patient to be.
        announce: Told of a directory that must be gone before the batch script ends.
    """

    def __init__(
        self,
        pack: Path,
        allocation: Allocation,
        settled: SettledMode,
        preparation: SetupRecord,
        journal: Journal,
        *,
        patience: GpuPatience,
        announce: Callable[[str], None] | None,
    ) -> None:
        self._pack = pack
        self._allocation = allocation
        self._settled = settled
        self._preparation = preparation
        self._journal = journal
        self._patience = patience
        self._announce = announce
        self._daemon: PackDaemon | None = None
        self._look: BackgroundCall[tuple[int, ...]] | None = None
        self.clients = MpsClients(pack, journal, patience)
        self.pipe_directory = ""
        """Where its clients find it; empty while there is none."""

    def start(self, prepared: PreparedDaemon | None = None) -> None:
        """Start it, or take the one that the prolog has prepared."""
        from slurm_colloc.runtime.pack_daemon import PackDaemon

        self._daemon = PackDaemon(
            self._pack,
            self._preparation.setup.gpus,
            self._allocation.own_environment,
            self._allocation.job_id,
            clients=self.clients,
            journal=self._journal,
            listener=self,
            patience=self._patience,
            prepared=prepared,
            has_guard=self._announce is not None,
        )
        self._daemon.start()

    @property
    def is_mending(self) -> bool:
        """A fault has hit its clients: it takes no new one until they have all left."""
        return self._daemon is not None and self._daemon.is_mending

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        found = [] if self._look is None else [self._look.fileno()]
        return found if self._daemon is None else found + self._daemon.filenos()

    def work(self) -> None:
        """Do all that can be done now."""
        if self._daemon is not None:
            self._daemon.work()
            self._look_outside()

    def _look_outside(self) -> None:
        """See which use the GPU without being clients, as long as one is not known as a client."""
        if self._look is not None:
            pids = self._look.poll()
            if pids is not None:
                self._look.close()
                self._look = None
                self.clients.note_outside(pids)
        elif self.clients.wants_gpu_look():
            from slurm_colloc.runtime.discover_gpus import search_outside

            self._look = search_outside(self._preparation.setup.gpus, self._patience.nvml_s)

    def fall_back(self, reason: str) -> None:
        """There is none, and members do without."""
        self.pipe_directory = ""
        self._settled.fall_back(reason)

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep the server from taking new clients."""
        return [] if self._daemon is None else self._daemon.list_stuck()

    def catch_up(self) -> None:
        """Hear all that it has said up to now; waits for a moment at most."""
        if self._daemon is not None:
            self._daemon.catch_up()

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        if self._daemon is not None:
            self._daemon.let_go()

    def close(self) -> None:
        """End it, once all members have ended."""
        if self._look is not None:
            self._look.close()
            self._look = None
        if self._daemon is not None:
            self._daemon.close()

    # -- what becomes of it -------------------------------------------------------------------

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        """It answers. Whether its server comes up is not known yet."""
        self.pipe_directory = pipe_directory
        by = "runner" if self._daemon is None else self._daemon.by
        if self._announce is not None and by == "runner":
            self._announce(os.path.dirname(pipe_directory))
        self._preparation.note_control(by, control_ms, restarts)
        self._preparation.add_notes(*notes)

    def note_ready(self, active_ms: float | None, notes: tuple[str, ...]) -> None:
        """Its server is ACTIVE: members can be started."""
        self._preparation.add_notes(*notes)
        self._settled.settle_mps(active_ms)

    def note_unprepared(self, reason: str) -> None:
        """The node's own daemon cannot be used; the pack gets one of its own."""
        self._preparation.add_notes(f"the node's own MPS daemon is not used: {reason}")

    def note_lost(self) -> None:
        """It is gone, and is being started again: nothing can start meanwhile."""
        self.pipe_directory = ""
        self._settled.mode = None

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""
        self.fall_back(reason)

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""
        self._preparation.note_stopped(report)
