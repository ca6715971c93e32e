"""One command of the control program and what the simulated daemon says to it."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from slurm_colloc.errors import CollocError
from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.client_limits import parse_number
from slurm_colloc_lab.simgpu.mps.server_link import ServerLink
from slurm_colloc_lab.simgpu.nvml.gpu_state import open_node
from slurm_colloc_lab.simgpu.training.cuda_devices import (
    CudaDevice,
    choose_cuda_devices,
    list_cuda_devices,
)

if TYPE_CHECKING:
    from slurm_colloc_lab.simgpu.mps.control_daemon import ControlDaemon, FrontEnd
    from slurm_colloc_lab.simgpu.mps.daemon_servers import ServerEntry


class Conversation:
    """One command and its answer.

    Args:
        daemon: Who answers.
        front_end: Who asks.
        words: What follows the command.
    """

    def __init__(self, daemon: ControlDaemon, front_end: FrontEnd, words: str) -> None:
        self.daemon = daemon
        self.front_end = front_end
        self.text = words
        self.words = words.split()

    def say(self, text: str) -> None:
        """Answer a line; it is also logged.

        Raises:
            mps_wire.Closed: The control program has gone.
        """
        self.daemon.log(text.removesuffix("\n"))
        data = struct.pack("i", wire_format.TEXT) + text.encode()
        wire_format.send(self.front_end.connection, data)

    def number(self, index: int) -> int:
        """The word at that place as C's `%d` reads it; 0 where there is none."""
        return parse_number(self.words[index]) if index < len(self.words) else 0

    def word(self, index: int) -> str:
        """The word at that place, or an empty one."""
        return self.words[index] if index < len(self.words) else ""

    def refuse(self, reason: str) -> None:
        """Say that the user may not."""
        self.say(f"Insufficient privileges for UID {self.front_end.uid}. {reason}")

    def may_set_defaults(self) -> bool:
        """Whether the user may change the daemon's settings; says so where not."""
        if self.front_end.privileged:
            return True
        self.refuse(self.daemon.profile.settings_refusal)
        return False

    def owns(self, entry: ServerEntry) -> bool:
        """Whether a server is the user's, or the user is root."""
        return self.front_end.uid in (entry.uid, 0)

    def find_server(self) -> ServerEntry | None:
        """The server whose pid is the first word; says so where there is none."""
        pid = self.number(0)
        entry = self.daemon.servers.find(pid)
        if entry is None:
            self.say(f"Server {pid} not found")
        return entry

    def find_link(self) -> ServerLink | None:
        """The connection to that server; that it is not ready yet is only logged."""
        entry = self.find_server()
        if entry is not None and entry.link is None:
            self.daemon.log(f"Server {entry.pid} is <busy>")
        return None if entry is None else entry.link

    def find_own_link(self) -> ServerLink | None:
        """Likewise, where the user may change that server's settings; says so where not."""
        link = self.find_link()
        entry = self.daemon.servers.find(self.number(0))
        if link is None or entry is None or self.owns(entry):
            return link
        self.refuse("Only the root user may change settings for another user's server.")
        return None


def read_gpus() -> list[CudaDevice]:
    """The devices that the daemon sees, by cuda_index."""
    try:
        devices = list_cuda_devices(open_node(os.environ))
    except CollocError:
        return []
    return list(choose_cuda_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), devices))
