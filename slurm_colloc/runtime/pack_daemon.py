"""The pack's MPS daemon as its runner sees it: started, heard, started again, ended.

A keeper process starts, watches and ends the daemon, also when this runner is killed
(host.keeper.keeper). Here its events are turned into what the pack needs to know. One that the
node's prolog has prepared is watched in the same way; where it dies, the pack goes on with its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from slurm_colloc.errors import StateError
from slurm_colloc.host.keeper import keeper_messages as keepers
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, FAULT
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport, choose_passed_environment
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.runtime.allocation import requeues_jobs
from slurm_colloc.runtime.mps_clients import InstanceClients, MpsClients
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.settled_mode import GpuPatience
from slurm_colloc.store.atomic_files import make_directory
from slurm_colloc.store.pack_directory import read_spec

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon

DAEMONS_MAX = 3
"""How often a daemon that dies is started before the pack goes on without MPS."""

_STDERR = 2


class DaemonListener(Protocol):
    """Is told what becomes of the daemon."""

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        """It answers."""

    def note_ready(self, active_ms: float | None) -> None:
        """Members can be started; its server is ACTIVE, or comes with the first of them."""

    def note_unprepared(self, reason: str) -> None:
        """The node's own daemon cannot be used, and one is started instead."""

    def note_lost(self) -> None:
        """It is gone, and is being started again."""

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""


@dataclass(eq=False, kw_only=True)
class PackDaemon:
    """Starts a daemon, and watches over it.

    Attributes:
        pack: The attempt of the pack.
        gpus: UUIDs.
        clients: Is told which its clients are, and what hits them.
        listener: Is told what becomes of it.
        patience: How patient to be.
        prepared: A daemon that the node's prolog has started for this job.
        logs: The folder for its logs below the pack's `mps`; empty for that itself.
        has_guard: The parent of this process outlives it, and keeps the members meanwhile.
    """

    pack: PackContext
    gpus: tuple[str, ...]
    clients: MpsClients | InstanceClients
    listener: DaemonListener
    patience: GpuPatience
    prepared: PreparedDaemon | None = None
    logs: str = ""
    has_guard: bool = False

    def __post_init__(self) -> None:
        logs_to = self.pack.path / "mps" / self.logs
        self._options = MpsOptions(
            gpus=self.gpus,
            bases=self.patience.bases,
            environment=choose_passed_environment(self.pack.allocation.own_environment),
            path=self.pack.allocation.own_environment.get("PATH", ""),
            logs_to=str(logs_to),
            label=self.pack.allocation.job_id,
            guard_pid=os.getppid() if self.has_guard else 0,
            starts_server=self._has_several or not self._may_restart(),
            keeps_server=self._has_several,
            adopt="" if self.prepared is None else self.prepared.pipe_directory,
        )
        self._keeper: KeeperClient | None = None
        self._starts = 0
        self._is_let_go = False
        self._fault_since: float | None = None
        self._unproven_since: float | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            keepers.ControlProved: self._note_control,
            keepers.Ready: lambda event: self.listener.note_ready(event.active_ms),
            keepers.Failed: self._note_failed,
            keepers.Fault: self.clients.note_fault,
            keepers.ServerStatus: self._note_server,
            keepers.ClientJoined: lambda event: self.clients.join(event.pid),
            keepers.ClientLeft: lambda event: self.clients.leave(event.pid),
            keepers.Status: self.clients.note_status,
            keepers.DaemonDied: lambda _: self._lose("the MPS daemon has died"),
            keepers.KeeperDied: lambda _: self._lose_keeper(),
            keepers.Stopped: lambda event: self._note_stopped(event.report),
            keepers.DaemonTrouble: lambda event: self.pack.journal.write(
                "mps_trouble", pid=event.pid, text=event.text[:500]
            ),
            keepers.Sweeping: lambda event: self.pack.journal.write(
                "mps_swept", path=event.path, of=event.label, reason=event.reason
            ),
        }
        with contextlib.suppress(StateError):
            make_directory(logs_to)

    @property
    def by(self) -> str:
        """Who has started it."""
        return "runner" if self.prepared is None else "prolog"

    def start(self) -> None:
        """Start it; what comes of it is heard by `work`."""
        self._starts += 1
        self._fault_since = self._unproven_since = None
        try:
            # What goes wrong in the keeper itself stands in the pack's log.
            self._keeper = KeeperClient.start(self._options, log=_STDERR)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            self.listener.note_given_up(f"the MPS keeper cannot be started: {reason}")

    @property
    def _has_several(self) -> bool:
        """It does not begin with one member, which sees nothing on its GPU but its own."""
        # Those that it was submitted with may not have been taken in yet.
        return max(len(self.pack.members.by_number), len(self.pack.record.members)) > 1

    def _may_restart(self) -> bool:
        """A member that finds no server may run again; else it is proven first that one comes."""
        by_site = requeues_jobs(self.pack.config)
        with contextlib.suppress(StateError):
            # As they were written: none may have been taken in yet.
            jobs = [read_spec(self.pack.path, number).job for number in self.pack.record.members]
            return all(by_site if job.requeue is None else job.requeue for job in jobs)
        return by_site

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        keeper = self._keeper
        return [keeper.fileno()] if keeper is not None and keeper.is_alive else []

    def work(self) -> None:
        """Hear what has happened, and ask what is not known."""
        self._hear()
        since = self._unproven_since
        if since is not None and time.monotonic() > since + self._options.active_cap_s:
            self._refuse_server(f"none became ACTIVE within {self._options.active_cap_s:g} s")
        if self._keeper is not None and self.clients.wants_status():
            self._keeper.ask_status()

    def _hear(self) -> None:
        if self._keeper is not None:
            for event in self._keeper.poll():
                self._handle(event)

    def _handle(self, event: keepers.Event) -> None:
        handle = self._handlers.get(type(event))
        if handle is not None:
            handle(event)

    # -- faults -------------------------------------------------------------------------------

    @property
    def is_mending(self) -> bool:
        """A fault has hit its clients: it takes no new one until they have all left."""
        since = self._fault_since
        if since is None:
            return False
        return bool(self.clients.list_hit()) or time.monotonic() < since + self.patience.mend_s

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep the server from taking new clients."""
        since = self._fault_since
        if since is None or time.monotonic() < since + self.patience.fault_grace_s:
            return []
        return self.clients.list_hit()

    def catch_up(self) -> None:
        """Hear all that the daemon has said up to now; waits for a moment at most."""
        if self._keeper is None:
            return
        self._keeper.ask_status()
        deadline = time.monotonic() + self.patience.status_s
        seen = self.clients.statuses
        while self.clients.statuses == seen and self.filenos():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(OSError, ValueError):
                select.select(self.filenos(), [], [], left_s)
            self._hear()

    # -- the daemon's events ------------------------------------------------------------------

    def _note_control(self, event: keepers.ControlProved) -> None:
        self.pack.journal.write("mps_daemon", pid=event.daemon_pid, ms=event.control_ms)
        notes = tuple(f"not used: {base}" for base in event.refused_bases)
        control_ms = event.control_ms
        if self.prepared is not None and self.prepared.control_ms is not None:
            control_ms = self.prepared.control_ms
        self.listener.note_control(event.pipe_directory, control_ms, self._starts - 1, notes)

    def _note_stopped(self, report: StopReport) -> None:
        # The node's own goes on until the epilog.
        if self.prepared is None:
            self.listener.note_stopped(report)

    def _drop_prepared(self, reason: str) -> None:
        self.prepared = None
        self._options = replace(self._options, adopt="")
        self.pack.journal.write("mps_unprepared", reason=reason)
        self.listener.note_unprepared(reason)

    def _note_failed(self, event: keepers.Failed) -> None:
        self._keeper = None
        if self.prepared is not None:
            self._drop_prepared(event.reason)
            self._starts = 0
            self.start()
            return
        self.clients.lose(f"there is no MPS server: {event.reason}")
        self.listener.note_given_up(event.reason)

    def _note_server(self, event: keepers.ServerStatus) -> None:
        self.pack.journal.write("mps_server", server=event.server_pid, status=event.status)
        if event.status == FAULT:
            self._fault_since = time.monotonic()
        elif event.status in (ACTIVE, EXITED):
            self._fault_since = None
        if event.status == ACTIVE:
            self._unproven_since, self._options = None, replace(self._options, starts_server=True)
        elif not self._options.starts_server:
            # The first one, which a member has brought.
            self._unproven_since = self._unproven_since or time.monotonic()
        if event.status == EXITED and not self._is_let_go:
            self.clients.lose("the MPS server has ended")
            if not self._options.starts_server:
                self._refuse_server(event.text or "it ended before it was ACTIVE")

    def _refuse_server(self, reason: str) -> None:
        """Do without this daemon: the server that its first client was to bring does not come."""
        self._unproven_since = None
        self._stop()
        self.listener.note_lost()
        self._note_failed(keepers.Failed(f"the MPS server cannot start: {reason}"))

    def _lose(self, reason: str) -> None:
        """The daemon has died, and on current drivers its server and all clients with it."""
        self._note_loss(reason)
        keeper = self._keeper
        if self._is_let_go:
            return
        if self.prepared is not None:
            self._drop_prepared("it has died")
        if keeper is None or self._starts >= DAEMONS_MAX:
            self._stop()
            self.listener.note_given_up(f"{reason}, {self._starts} times")
            return
        self._starts += 1
        keeper.restart()

    def _lose_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        reason = "the MPS daemon's keeper was killed"
        if self.prepared is not None and self._starts < DAEMONS_MAX:
            # The daemon has lost nothing but its watcher.
            self.pack.journal.write("mps_unwatched", reason=reason)
            if not self._is_let_go:
                self.start()
            return
        self._note_loss(reason)
        if keeper is not None:
            self._recover(keeper)
        if self._is_let_go:
            return
        if self._starts >= DAEMONS_MAX:
            self.listener.note_given_up(f"{reason}, {self._starts} times")
        else:
            self.start()

    def _note_loss(self, reason: str) -> None:
        self._fault_since = None
        if not self._is_let_go:
            self.clients.lose(reason)
        self.pack.journal.write("mps_lost", reason=reason)
        self.listener.note_lost()

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Have its files removed now: Slurm is about to kill all that is left of the pack."""
        if self._keeper is not None and not self._is_let_go:
            self._is_let_go = True
            self.pack.journal.write("mps_let_go")
            self._keeper.abandon()

    def close(self) -> None:
        """End it, once all members have ended."""
        self._stop()

    def _stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if not self._is_let_go:
            keeper.stop()
        for event in keeper.wait(time.monotonic() + self.patience.stop_s):
            if isinstance(event, (keepers.Fault, keepers.Stopped)):
                self._handle(event)
            elif isinstance(event, keepers.KeeperDied):
                self._recover(keeper)
        if keeper.is_alive:
            keeper.kill()
            self._recover(keeper)

    def _recover(self, keeper: KeeperClient) -> None:
        if self.prepared is None:
            self.listener.note_stopped(keeper.recover())
