"""The MPS daemon over the pack's GPUs, as the pack sees it: where clients find it, who they are.

What it says goes into the attempt's setup and the mode that holds. What starts it
(runtime.pack_daemon) is loaded only where it is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.runtime.mps_clients import MpsClients
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.settled_mode import GpuPatience, SettledMode, SetupRecord

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon
    from slurm_colloc.host.mps.mps_state import StopReport
    from slurm_colloc.runtime.discover_gpus import BackgroundCall
    from slurm_colloc.runtime.pack_daemon import PackDaemon


@dataclass(eq=False, kw_only=True)
class GpuDaemon:
    """Starts the daemon, and hears what becomes of it (`pack_daemon.DaemonListener`).

    Attributes:
        pack: The attempt of the pack.
        settled: The mode.
        preparation: The attempt's setup.
        patience: How patient to be.
    """

    pack: PackContext
    settled: SettledMode
    preparation: SetupRecord
    patience: GpuPatience

    def __post_init__(self) -> None:
        self._daemon: PackDaemon | None = None
        self._look: BackgroundCall[tuple[int, ...]] | None = None
        self.clients = MpsClients(self.pack.path, self.pack.journal, self.patience)
        self.pipe_directory = ""
        """Where its clients find it; empty while there is none."""

    def start(self, prepared: PreparedDaemon | None = None) -> None:
        """Start it, or take the one that the prolog has prepared."""
        from slurm_colloc.runtime.pack_daemon import PackDaemon

        self._daemon = PackDaemon(
            pack=self.pack,
            gpus=self.preparation.setup.gpus,
            clients=self.clients,
            listener=self,
            patience=self.patience,
            prepared=prepared,
            has_guard=self.pack.announce is not None,
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

            self._look = search_outside(self.preparation.setup.gpus, self.patience.nvml_s)

    def fall_back(self, reason: str) -> None:
        """There is none, and members do without."""
        self.pipe_directory = ""
        self.settled.fall_back(reason)

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
        if self.pack.announce is not None and by == "runner":
            self.pack.announce(os.path.dirname(pipe_directory))
        self.preparation.note_control(by, control_ms, restarts)
        self.preparation.add_notes(*notes)

    def note_ready(self, active_ms: float | None) -> None:
        """Members can be started."""
        self.settled.settle_mps(active_ms)

    def note_unprepared(self, reason: str) -> None:
        """The node's own daemon cannot be used; the pack gets one of its own."""
        self.preparation.add_notes(f"the node's own MPS daemon is not used: {reason}")

    def note_lost(self) -> None:
        """It is gone, and is being started again: nothing can start meanwhile."""
        self.pipe_directory = ""
        self.settled.mode = None

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""
        self.fall_back(reason)

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""
        self.preparation.note_stopped(report)
