"""Watching an MPS daemon: what its logs say and it answers, as messages of the keeper's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper.keeper_messages import (
    ClientJoined,
    ClientLeft,
    DaemonDied,
    DaemonTrouble,
    Event,
    Fault,
    ServerClients,
    ServerStatus,
    Status,
)
from slurm_colloc.host.keeper.keeper_process import collect_orphans
from slurm_colloc.host.mps.mps_answers import ListedClient
from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, parse_pids
from slurm_colloc.host.mps.mps_events import (
    ClientConnected,
    ClientDisconnected,
    FaultSeen,
    LogEvent,
    Problem,
    StatusChanged,
)
from slurm_colloc.host.mps.mps_log_files import read_last_words
from slurm_colloc.host.mps.start_daemon import NO_WORD, RunningMps, explain_end
from slurm_colloc.host.system.node_processes import (
    is_alive,
    list_session,
    read_namespace_pids,
    read_uid,
)

_STATUS_S = 0.1
_LOG_S = 0.005
_SETTLE_S = 0.02

Pause = Callable[[float], bool]
"""Waits so many seconds; False where the caller has lost interest."""


def wait_for_active(running: RunningMps, pause: Pause) -> int | None:
    """Wait until a server is ACTIVE.

    Args:
        running: The daemon; `events` takes what its logs say meanwhile.
        pause: How to wait.

    Returns:
        The server's pid, or None where `pause` broke off.

    Raises:
        NodeError: No server becomes ACTIVE.
    """
    started = time.monotonic()
    ask_at = started
    # It may have failed already while the command was being answered.
    _raise_if_failed(running.events)
    while True:
        if running.child is not None and (status := running.child.poll()) is not None:
            raise NodeError(explain_end(status, running.directory, running.uid))
        fresh = running.logs.read()
        running.events += fresh
        ready = any(isinstance(e, StatusChanged) and e.status == ACTIVE for e in fresh)
        _raise_if_failed(fresh)
        now = time.monotonic()
        if ready or now >= ask_at:
            for server_pid in running.control.read_servers() or ():
                running.note_server(server_pid)
                if running.control.read_server_status(server_pid) == ACTIVE:
                    return server_pid
            ask_at = time.monotonic() + _STATUS_S
        if now - started > running.options.active_cap_s:
            raise NodeError(
                f"no MPS server became ACTIVE within {running.options.active_cap_s:g} s: "
                f"{read_last_words(running.directory.descriptor, running.uid) or NO_WORD}"
            )
        if not pause(_LOG_S):
            return None


def _raise_if_failed(events: list[LogEvent]) -> None:
    for event in events:
        if isinstance(event, Problem):
            raise NodeError(f"the MPS server cannot start: {event.text}")
        if isinstance(event, StatusChanged) and event.status == EXITED:
            raise NodeError(f"the MPS server ended before it was ACTIVE: {event.text}")


class DaemonWatch:
    """Watches one daemon.

    Args:
        running: The daemon.
        say: Takes what happens to it.
    """

    def __init__(self, running: RunningMps, say: Callable[[Event], None]) -> None:
        self.running = running
        self.has_died = False
        self._say = say
        self._joined: set[int] = set()

    def look(self) -> None:
        """Say what has happened since the last time."""
        running = self.running
        self.follow(flushes=False)
        child = running.child
        collect_orphans(child)
        # One that root has started is no child of this process.
        has_ended = not is_alive(running.daemon) if child is None else child.poll() is not None
        if not self.has_died and has_ended:
            self.has_died = True
            self.follow(flushes=True)
            left = tuple(process.id.pid for process in list_session(running.daemon.pid))
            self._say(DaemonDied(None if child is None else child.returncode, left))

    def follow(self, *, flushes: bool) -> None:
        """Say what the logs have said since the last time.

        Args:
            flushes: Say a fault whose last lines may still be missing.
        """
        logs = self.running.logs
        mark = logs.lines_read
        events = logs.read()
        if logs.has_open_fault and (flushes or logs.lines_read == mark):
            # It is written in one go; with nothing more to read it is complete.
            if flushes:
                time.sleep(_SETTLE_S)
                events += logs.read()
            events += logs.flush()
        self.tell(events)

    def tell(self, events: Iterable[LogEvent]) -> None:
        """Say what a log has said."""
        for event in events:
            self._say(self._translate(event))

    def _translate(self, event: LogEvent) -> Event:
        if isinstance(event, StatusChanged):
            self.running.note_server(event.server_pid)
            return ServerStatus(event.server_pid, event.status, event.text)
        if isinstance(event, ClientConnected):
            self.running.note_client(event.client_pid)
            self._joined.add(event.client_pid)
            return ClientJoined(event.client_pid, event.server_pid)
        if isinstance(event, ClientDisconnected):
            self._joined.discard(event.client_pid)
            return ClientLeft(event.client_pid, event.server_pid)
        if isinstance(event, FaultSeen):
            return Fault(event.server_pid, event.suspects, event.named_pid, event.text)
        return DaemonTrouble(event.pid, event.text)

    def has_clients(self) -> bool:
        """Whether a client that has connected still lives and has not left."""
        clients = self.running.clients
        return any(pid in self._joined and is_alive(who) for pid, who in clients.items())

    def read_status(self) -> Status:
        """Its servers and their clients; every fault in the logs has been said before."""
        self.look()
        if self.has_died:
            return Status((), "the MPS daemon has ended")
        answer = self.running.control.ask("get_server_list")
        pids = parse_pids(answer)
        if pids is None:
            words = answer.problem or answer.stdout.strip()
            return Status((), f"the MPS daemon does not answer: {words}")
        status = _describe_servers(self.running, pids)
        self.follow(flushes=True)
        return status


def _describe_servers(running: RunningMps, server_pids: Iterable[int]) -> Status:
    """The servers of a daemon, each with its clients.

    Args:
        running: The daemon; the servers are noted in it.
        server_pids: What it says its servers are.
    """
    control = running.control
    rows = {(row.pid, row.server_pid): row for row in control.read_snapshot()}
    problem = ""
    servers = []
    for server_pid in server_pids:
        running.note_server(server_pid)
        clients = control.read_clients(server_pid)
        if clients is None:
            problem = f"server {server_pid} does not tell its clients"
        found = []
        for pid in clients or ():
            row = rows.get((pid, server_pid), ListedClient(pid, server_pid))
            inner = read_namespace_pids(pid)
            found.append(
                ListedClient(pid, server_pid, row.device, row.namespace, row.command, inner)
            )
        status = control.read_server_status(server_pid)
        servers.append(ServerClients(server_pid, read_uid(server_pid), status, tuple(found)))
    return Status(tuple(servers), problem)
