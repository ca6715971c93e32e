"""Who uses the GPU through a private MPS daemon, as the daemon tells, and ending one of them."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_colloc.host.keeper_messages import Server, Status, Terminated
from slurm_colloc.host.mps import RunningMps
from slurm_colloc.host.mps_answers import Client
from slurm_colloc.host.mps_control import ControlProgram
from slurm_colloc.host.processes import read_namespace_pids, read_uid


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
