"""Waiting for a server of a private MPS daemon, by what the logs say and the daemon answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper.keeper_messages import Server, Status, Terminated
from slurm_colloc.host.mps.mps_answers import Client
from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, ControlProgram
from slurm_colloc.host.mps.mps_events import LogEvent, Problem, StatusChanged
from slurm_colloc.host.mps.mps_log_files import read_last_words
from slurm_colloc.host.mps.start_daemon import NO_WORD, RunningMps, explain_end
from slurm_colloc.host.system.node_processes import read_namespace_pids, read_uid

_STATUS_S = 0.1
_LOG_S = 0.005

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


def describe_servers(running: RunningMps, server_pids: Iterable[int]) -> Status:
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
            row = rows.get((pid, server_pid), Client(pid, server_pid))
            inner = read_namespace_pids(pid)
            found.append(Client(pid, server_pid, row.device, row.namespace, row.command, inner))
        status = control.read_server_status(server_pid)
        servers.append(Server(server_pid, read_uid(server_pid), status, tuple(found)))
    return Status(tuple(servers), problem)


def terminate_client(control: ControlProgram, pid: int) -> Terminated:
    """Have the daemon end a client, whichever server it uses."""
    servers = control.read_servers()
    if servers is None:
        return Terminated(pid, done=False, text="the MPS daemon does not answer")
    for server_pid in servers:
        if pid in (control.read_clients(server_pid) or ()):
            answer = control.ask(f"terminate_client {server_pid} {pid}")
            text = answer.problem or answer.stdout.strip()
            # "0" on 550 and 580; two programs of others expect the name.
            return Terminated(pid, done=text in ("0", "CUDA_SUCCESS"), text=text)
    return Terminated(pid, done=False, text="it is no client")
