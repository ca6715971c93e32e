"""The pack's MPS daemon as its runner sees it: started, heard, started again, ended.

Also: the MPS daemon over the pack's GPUs, as the pack sees it: where clients find it, who they are;
whether the node's prolog has prepared an MPS daemon for this pack, and whether it will do.

A keeper process starts, watches and ends the daemon, also when this runner is killed
(host.keeper.keeper). Here its events are turned into what the pack needs to know. One that the
node's prolog has prepared is watched in the same way; where it dies, the pack goes on with its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.hooks.run_directory import DEFAULT_RUN, is_job_id
from slurm_colloc.host.keeper import keeper_messages as keepers
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.keeper.prepared_daemon import (
    PreparedDaemon,
    PreparedGpu,
    PreparedSetup,
    read_prepared,
)
from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, FAULT
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport, choose_passed_environment
from slurm_colloc.runtime.gpu.mps_clients import InstanceClients, MpsClients
from slurm_colloc.runtime.gpu.settled_mode import GpuPatience, SettledMode, SetupRecord
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.store.atomic_files import make_directory

if TYPE_CHECKING:
    from slurm_colloc.runtime.gpu.gpu_mode import BackgroundCall


DAEMONS_MAX = 3
"""How often a daemon that dies is started before the pack goes on without MPS."""

_STDERR = 2


class DaemonListener(Protocol):
    """Is told what becomes of the daemon."""

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        """It answers."""

    def note_ready(self, active_ms: float | None, notes: tuple[str, ...]) -> None:
        """Its server is ACTIVE: members can be started."""

    def note_unprepared(self, reason: str) -> None:
        """The node's own daemon cannot be used, and one is started instead."""

    def note_lost(self) -> None:
        """It is gone, and is being started again."""

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""


class PackDaemon:
    """Starts a daemon, and watches over it.

    Args:
        pack: The pack's directory.
        gpus: UUIDs.
        environ: The batch script's environment.
        label: Whose it is, for people.
        clients: Is told which its clients are, and what hits them.
        journal: The pack's log.
        listener: Is told what becomes of it.
        patience: How patient to be.
        prepared: A daemon that the node's prolog has started for this job.
        logs: The folder for its logs below the pack's `mps`; empty for that itself.
        has_guard: The parent of this process outlives it, and keeps the members meanwhile.
    """

    def __init__(
        self,
        pack: Path,
        gpus: tuple[str, ...],
        environ: Mapping[str, str],
        label: str,
        *,
        clients: MpsClients | InstanceClients,
        journal: Journal,
        listener: DaemonListener,
        patience: GpuPatience,
        prepared: PreparedDaemon | None = None,
        logs: str = "",
        has_guard: bool = False,
    ) -> None:
        logs_to = pack / "mps" / logs
        self._options = MpsOptions(
            gpus=gpus,
            bases=patience.bases,
            environment=choose_passed_environment(environ),
            path=environ.get("PATH", ""),
            logs_to=str(logs_to),
            label=label,
            guard_pid=os.getppid() if has_guard else 0,
            adopt="" if prepared is None else prepared.pipe_directory,
        )
        self._prepared = prepared
        self._clients = clients
        self._journal = journal
        self._listener = listener
        self._patience = patience
        self._keeper: KeeperClient | None = None
        self._starts = 0
        self._is_let_go = False
        self._fault_since: float | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            keepers.ControlProved: self._note_control,
            keepers.Ready: lambda event: listener.note_ready(event.active_ms, event.notes),
            keepers.Failed: self._note_failed,
            keepers.Fault: clients.note_fault,
            keepers.ServerStatus: self._note_server,
            keepers.ClientJoined: lambda event: clients.join(event.pid),
            keepers.Status: clients.note_status,
            keepers.DaemonDied: lambda _: self._lose("the MPS daemon has died"),
            keepers.KeeperDied: lambda _: self._lose_keeper(),
            keepers.Stopped: lambda event: self._note_stopped(event.report),
            keepers.DaemonTrouble: lambda event: journal.write(
                "mps_trouble", pid=event.pid, text=event.text[:500]
            ),
            keepers.Sweeping: lambda event: journal.write(
                "mps_swept", path=event.path, of=event.label, reason=event.reason
            ),
        }
        with contextlib.suppress(StateError):
            make_directory(logs_to)

    @property
    def by(self) -> str:
        """Who has started it."""
        return "runner" if self._prepared is None else "prolog"

    def start(self) -> None:
        """Start it; what comes of it is heard by `work`."""
        self._starts += 1
        self._fault_since = None
        try:
            # What goes wrong in the keeper itself stands in the pack's log.
            self._keeper = KeeperClient.start(self._options, log=_STDERR)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            self._listener.note_given_up(f"the MPS keeper cannot be started: {reason}")

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        keeper = self._keeper
        return [keeper.fileno()] if keeper is not None and keeper.is_alive else []

    def work(self) -> None:
        """Hear what has happened, and ask what is not known."""
        self._hear()
        if self._keeper is not None and self._clients.wants_status():
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
        return bool(self._clients.list_hit()) or time.monotonic() < since + self._patience.mend_s

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep the server from taking new clients."""
        since = self._fault_since
        if since is None or time.monotonic() < since + self._patience.fault_grace_s:
            return []
        return self._clients.list_hit()

    def catch_up(self) -> None:
        """Hear all that the daemon has said up to now; waits for a moment at most."""
        if self._keeper is None:
            return
        self._keeper.ask_status()
        deadline = time.monotonic() + self._patience.status_s
        seen = self._clients.statuses
        while self._clients.statuses == seen and self.filenos():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(OSError, ValueError):
                select.select(self.filenos(), [], [], left_s)
            self._hear()

    # -- the daemon's events ------------------------------------------------------------------

    def _note_control(self, event: keepers.ControlProved) -> None:
        self._journal.write("mps_daemon", pid=event.daemon_pid, ms=event.control_ms)
        notes = tuple(f"not used: {base}" for base in event.refused_bases)
        control_ms = event.control_ms
        if self._prepared is not None and self._prepared.control_ms is not None:
            control_ms = self._prepared.control_ms
        self._listener.note_control(event.pipe_directory, control_ms, self._starts - 1, notes)

    def _note_stopped(self, report: StopReport) -> None:
        # The node's own goes on until the epilog.
        if self._prepared is None:
            self._listener.note_stopped(report)

    def _drop_prepared(self, reason: str) -> None:
        self._prepared = None
        self._options = dataclasses.replace(self._options, adopt="")
        self._journal.write("mps_unprepared", reason=reason)
        self._listener.note_unprepared(reason)

    def _note_failed(self, event: keepers.Failed) -> None:
        self._keeper = None
        if self._prepared is not None:
            self._drop_prepared(event.reason)
            self._starts = 0
            self.start()
            return
        self._clients.lose(f"there is no MPS server: {event.reason}")
        self._listener.note_given_up(event.reason)

    def _note_server(self, event: keepers.ServerStatus) -> None:
        self._journal.write("mps_server", server=event.server_pid, status=event.status)
        if event.status == FAULT:
            self._fault_since = time.monotonic()
        elif event.status in (ACTIVE, EXITED):
            self._fault_since = None
        if event.status == EXITED:
            self._clients.lose("the MPS server has ended")

    def _lose(self, reason: str) -> None:
        """The daemon has died, and on current drivers its server and all clients with it."""
        self._note_loss(reason)
        keeper = self._keeper
        if self._is_let_go:
            return
        if self._prepared is not None:
            self._drop_prepared("it has died")
        if keeper is None or self._starts >= DAEMONS_MAX:
            self._stop()
            self._listener.note_given_up(f"{reason}, {self._starts} times")
            return
        self._starts += 1
        keeper.restart()

    def _lose_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        reason = "the MPS daemon's keeper was killed"
        if self._prepared is not None and self._starts < DAEMONS_MAX:
            # The daemon has lost nothing but its watcher.
            self._journal.write("mps_unwatched", reason=reason)
            if not self._is_let_go:
                self.start()
            return
        self._note_loss(reason)
        if keeper is not None:
            self._recover(keeper)
        if self._is_let_go:
            return
        if self._starts >= DAEMONS_MAX:
            self._listener.note_given_up(f"{reason}, {self._starts} times")
        else:
            self.start()

    def _note_loss(self, reason: str) -> None:
        self._fault_since = None
        self._clients.lose(reason)
        self._journal.write("mps_lost", reason=reason)
        self._listener.note_lost()

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Have its files removed now: Slurm is about to kill all that is left of the pack."""
        if self._keeper is not None and not self._is_let_go:
            self._is_let_go = True
            self._journal.write("mps_let_go")
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
        for event in keeper.wait(time.monotonic() + self._patience.stop_s):
            if isinstance(event, (keepers.Fault, keepers.Stopped)):
                self._handle(event)
            elif isinstance(event, keepers.KeeperDied):
                self._recover(keeper)
        if keeper.is_alive:
            keeper.kill()
            self._recover(keeper)

    def _recover(self, keeper: KeeperClient) -> None:
        if self._prepared is None:
            self._listener.note_stopped(keeper.recover())


# ----
# The MPS daemon over the pack's GPUs, as the pack sees it: where clients find it, who they are.
#
# What it says goes into the attempt's setup and the mode that holds. What starts it
# (runtime.gpu.pack_daemon) is loaded only where it is started.


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
            from slurm_colloc.runtime.gpu.gpu_mode import search_outside

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


# ----
# Whether the node's prolog has prepared an MPS daemon for this pack, and whether it will do.

WHOLE_GPU = "MIG is on, and one instance has the whole GPU"
"""How the reason begins where the prolog made this in place of the layout (host.hooks.prolog)."""

RUN_VARIABLE = "SLURM_COLLOC_RUN"
"""Where the hooks of a node work, if not in the usual place; `%n` is the node's name. Whatever it
names is believed only where only root can have written it."""

POLICY_VARIABLE = "SLURM_COLLOC_POLICY"
"""The policy of these hooks. To people that look, and to `csub doctor`, it is what holds there."""


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
    try:
        setup = _read_setup(environ)
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


@dataclass(frozen=True)
class InstancesFinding:
    """The MIG instances that the prolog has made.

    Attributes:
        reason: Why there is no layout; empty where there is one.
        gpu: The GPU with its instances; None for none. With a reason, too, where the layout could
            not be had and one instance has all of the GPU, because no process finds a GPU there
            without any.
        socket: Where they can be changed; empty where they cannot.
        mps_inside: The site lets MPS run inside an instance.
    """

    reason: str
    gpu: PreparedGpu | None = None
    socket: str = ""
    mps_inside: bool = False


def find_instances(environ: Mapping[str, str]) -> InstancesFinding:
    """Look for the MIG instances that the prolog has made.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
    """
    try:
        setup = _read_setup(environ)
    except NodeError as error:
        return InstancesFinding(f"the node's MIG instances are not used: {error.message}")
    if setup is None:
        return InstancesFinding(
            "only a node's prolog can make MIG instances, and it has prepared nothing"
        )
    if setup.mode != "mig" or setup.mig is None:
        return InstancesFinding(f"the node has made no MIG instances: {setup.reason}")
    mig = setup.mig
    if len(mig.gpus) != 1 or not mig.gpus[0].instances:
        return InstancesFinding(f"the node has cut {len(mig.gpus)} GPUs, and a pack shares one")
    reason = setup.reason if setup.reason.startswith(WHOLE_GPU) else ""
    return InstancesFinding(reason, mig.gpus[0], mig.socket, mig.mps_inside)


def _read_setup(environ: Mapping[str, str]) -> PreparedSetup | None:
    """What root has prepared for this job; None for nothing.

    Raises:
        NodeError: It cannot be trusted, or cannot be read.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not is_job_id(job_id):
        return None
    run = environ.get(RUN_VARIABLE) or DEFAULT_RUN
    return read_prepared(run.replace("%n", environ.get("SLURMD_NODENAME", "")), job_id)


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
