"""The commands of the control program, answered by the simulated daemon.

Each answers as 550.163.01 does, its oddities included: text where one expects an error, nothing
where one expects text, the reason only in the log. What 580 does otherwise stands in
mps_profiles.py. The commands about limits are in mps_settings.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_colloc_lab.simgpu.mps import limit_commands
from slurm_colloc_lab.simgpu.mps.command_answer import Conversation, read_gpus
from slurm_colloc_lab.simgpu.mps.server_link import ClientRow
from slurm_colloc_lab.simgpu.training.cuda_devices import CudaDevice

if TYPE_CHECKING:
    from slurm_colloc_lab.simgpu.mps.control_daemon import ControlDaemon, FrontEnd
    from slurm_colloc_lab.simgpu.mps.daemon_servers import ServerEntry

# What terminate_client answers: CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED.
_INVALID = 1
_NOT_PERMITTED = 800


def run_command(daemon: ControlDaemon, front_end: FrontEnd, line: str) -> None:
    """Run one line of the control program.

    Raises:
        mps_wire.Closed: The control program has gone.
    """
    daemon.log(f"Cmd:{line}")
    words = line.split()
    name = words[0] if words else ""
    command = _COMMANDS.get(name)
    if command is None or (name == "device_query" and not daemon.profile.has_device_query):
        Conversation(daemon, front_end, "").say(f'Unknown command "{name}"')
        return
    command(Conversation(daemon, front_end, line.strip()[len(name) :].strip()))


# -- servers ---------------------------------------------------------------------------------------


def _get_server_list(conversation: Conversation) -> None:
    for entry in conversation.daemon.servers:
        if entry.is_running:
            conversation.say(str(entry.pid))


def _get_server_status(conversation: Conversation) -> None:
    if re.match(r"[+-]?\d", conversation.text) is None:
        conversation.say("A server PID is required")
        return
    entry = conversation.find_server()
    if entry is None:
        return
    if entry.link is None:
        conversation.say("FAULT" if entry.stopping else "INITIALIZING")
    else:
        conversation.say("ACTIVE" if entry.link.is_active() else "FAULT")


def _start_server(conversation: Conversation) -> None:
    daemon = conversation.daemon
    match = re.match(r"-uid\s+[+-]?\d", conversation.text)
    if match is None:
        conversation.say("A user id (UID) is required to start a new server")
        return
    if daemon.servers.quitting:
        conversation.say("The MPS control daemon is shutting down")
        return
    uid = conversation.number(1)
    if conversation.front_end.uid not in (uid, 0):
        conversation.refuse(daemon.profile.start_refusal)
        return
    daemon.servers.want(uid)


def _shutdown_server(conversation: Conversation) -> None:
    entry = conversation.find_server()
    if entry is None:
        return
    if not conversation.owns(entry):
        conversation.refuse(conversation.daemon.profile.shutdown_refusal)
        return
    conversation.daemon.servers.shut_down(entry, force=conversation.word(1) == "-f")


def _quit(conversation: Conversation) -> None:
    daemon = conversation.daemon
    if not conversation.front_end.privileged:
        conversation.say("Not enough privilege to execute quit command")
        return
    match = re.match(r"-t\s+\+?(\d+)", conversation.text)
    if match:
        daemon.log(f"quit command issued with timeout of {int(match[1])}")
    daemon.servers.quit(int(match[1]) if match else None)


# -- clients ---------------------------------------------------------------------------------------


def _get_client_list(conversation: Conversation) -> None:
    entry = conversation.find_server()
    if entry is not None and entry.link is not None:
        for pid in entry.link.list_clients():
            conversation.say(str(pid))


def _get_device_client_list(conversation: Conversation) -> None:
    if conversation.number(0):
        conversation.find_link()
        return
    for entry in conversation.daemon.servers:
        if entry.link is not None:
            # It has never shown anything, also not with clients (580 on an H200).
            entry.link.count_devices()
        elif entry.is_running:
            conversation.daemon.log(f"Server {entry.pid} is <busy>")


def _ps(conversation: Conversation) -> None:
    daemon = conversation.daemon
    option = re.match(r"-(\S)", conversation.text)
    if option and option[1] == "p":
        pid = conversation.number(1)
        entry = daemon.servers.find(pid)
        if entry is not None and entry.link is not None:
            _show_clients(conversation, entry, full=False)
            return
        if entry is None:
            conversation.say(f"Server {pid} not found")
        else:
            daemon.log(f"Server {pid} is <busy>")
        conversation.say(f"Server {pid} not found\n")
        return
    for entry in daemon.servers:
        if entry.link is not None:
            _show_clients(conversation, entry, full=bool(option and option[1] == "f"))
            return
        if entry.is_running:
            daemon.log(f"Server {entry.pid} is <busy>")
    conversation.say("Server not found")


def _show_clients(conversation: Conversation, entry: ServerEntry, *, full: bool) -> None:
    if entry.link is None:
        return
    rows = entry.link.take_snapshot()
    status = ""
    if full and rows:
        status = "ACTIVE" if entry.link.is_active() else "FAULT"
    for line in render_clients(entry.pid, rows, status):
        conversation.say(line)


def render_clients(server_pid: int, rows: Sequence[ClientRow], status: str = "") -> Iterator[str]:
    """The table of `ps`, or with a status that of `ps -f`; nothing where there is no row.

    Args:
        server_pid: The server.
        rows: Its clients.
        status: ACTIVE or FAULT.
    """
    if not rows:
        return
    shown = _count_shown({row.uuid for row in rows})
    width = shown + 4
    head = f"{'PID':10}{'ID':10}{'SERVER':15}"
    if status:
        head += f"{'STATUS':15}"
    head += f"{'DEVICE':{width}}{'NAMESPACE':15}"
    if status:
        head += f"{'PRIORITY':15}"
    yield f"{head}{'COMMAND':15}"
    for row in rows:
        digits = row.uuid.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        device = f"GPU-{'-'.join(parts)}"[:shown]
        line = f"{row.pid:<10}{row.number:<10}{server_pid:<15}"
        if status:
            line += f"{status:15}"
        line += f"{device:{width}}{_read_namespace(row.pid):15}"
        if status:
            line += f"{('NORMAL', 'BELOW_NORMAL')[row.priority & 1]:15}"
        yield f"{line}{_read_command(row.pid):15}"


def _count_shown(uuids: set[bytes]) -> int:
    """So many characters of the UUID that all are told apart; 22 at least."""
    length = next((n for n in range(1, 17) if len({raw[:n] for raw in uuids}) == len(uuids)), 16)
    if length <= 8:
        return 22
    return 2 * length + (5 if length <= 10 else 6) + 1


def _read_namespace(pid: int) -> str:
    try:
        return str(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        return "?"


def _read_command(pid: int) -> str:
    """The first word of its command line: the program may have no path."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).split(b"\0")[0].decode(errors="replace")
    except OSError:
        return "?"


def _terminate_client(conversation: Conversation) -> None:
    server_pid, client_pid = conversation.number(0), conversation.number(1)
    entry = conversation.find_server()
    if entry is None or entry.link is None:
        if entry is not None:
            conversation.daemon.log(f"Server {server_pid} is <busy>")
        conversation.say(f"Server {server_pid} not found!")
        result = _INVALID
    elif not conversation.owns(entry):
        conversation.refuse("Only the root user may terminate clients on another user's server.")
        result = _NOT_PERMITTED
    elif not os.path.exists(f"/proc/{client_pid}"):
        conversation.say(f"Invalid process {client_pid}!")
        result = _INVALID
    else:
        result = entry.link.terminate(client_pid)
    conversation.say(str(result))


# -- devices (580) ---------------------------------------------------------------------------------


def _device_query(conversation: Conversation) -> None:
    gpus = read_gpus()
    pid = conversation.number(0)
    if pid and conversation.daemon.servers.find(pid) is None:
        conversation.say(f"Server {pid} not found")
        return
    conversation.say("Default")
    _say_devices(conversation, gpus)
    for entry in conversation.daemon.servers:
        if entry.link is not None and pid in (0, entry.pid):
            conversation.say(f"\nServer {entry.pid}")
            _say_devices(conversation, gpus)


def _say_devices(conversation: Conversation, gpus: list[CudaDevice]) -> None:
    conversation.say(f"{'Device Ordinal':16}{'PCI IDs':15}{'UUID':42}{'Name':34}Attributes")
    for ordinal, gpu in enumerate(gpus):
        # 00000000:1A:00.0 is written 0000:00.1A.00.
        domain, bus, slot = gpu.gpu.pci_bus_id.split(":")
        pci = f"{domain[-4:]}:{domain[:2]}.{bus}.{slot.partition('.')[0]}"
        conversation.say(f"{ordinal:<16}{pci:15}{gpu.uuid:42}{gpu.name:34}N/A")


_COMMANDS: dict[str, Callable[[Conversation], None]] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "get_client_list": _get_client_list,
    "get_device_client_list": _get_device_client_list,
    "ps": _ps,
    "terminate_client": _terminate_client,
    "get_default_active_thread_percentage": limit_commands.get_default_percentage,
    "set_default_active_thread_percentage": limit_commands.set_default_percentage,
    "get_active_thread_percentage": limit_commands.get_percentage,
    "set_active_thread_percentage": limit_commands.set_percentage,
    "get_default_device_pinned_mem_limit": limit_commands.get_default_limit,
    "set_default_device_pinned_mem_limit": limit_commands.set_default_limit,
    "get_device_pinned_mem_limit": limit_commands.get_limit,
    "set_device_pinned_mem_limit": limit_commands.set_limit,
    "get_default_client_priority": limit_commands.get_default_priority,
    "set_default_client_priority": limit_commands.set_default_priority,
    "device_query": _device_query,
    "quit": _quit,
}
