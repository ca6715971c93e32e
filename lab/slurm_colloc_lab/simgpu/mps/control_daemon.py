"""The simulated control daemon at work.

One thread serves all in turn, as the real one does (550): a program that connects and says nothing
keeps all others waiting, and while one control program is connected others are turned away.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.control_commands import run_command
from slurm_colloc_lab.simgpu.mps.daemon_logs import CONTROL, pack_record, parse_records
from slurm_colloc_lab.simgpu.mps.daemon_servers import Servers
from slurm_colloc_lab.simgpu.mps.driver_versions import MpsProfile
from slurm_colloc_lab.simgpu.mps.server_link import ServerLink

# `quit` answers up to 2 ms (550) or 3 ms (580) before the process has gone. Where that moment can
# wedge the next daemon it is longer here, because Python takes longer to start.
_LINGER_S = 0.003
_WEDGING_LINGER_S = 1.5


@dataclass(frozen=True)
class DaemonPaths:
    """What a daemon has opened.

    Args:
        pipe_directory: CUDA_MPS_PIPE_DIRECTORY.
        lock: Descriptor of the locked `control_lock`.
        records: Descriptor of the fifo `log`.
        logs: Descriptors for the daemon's own lines and for all others, None for none.
        control: The socket for everybody.
        privileged: The socket for the owner and root.
        pid_file: Its path.
    """

    pipe_directory: str
    lock: int
    records: int
    logs: tuple[int | None, int | None]
    control: socket.socket
    privileged: socket.socket
    pid_file: str


@dataclass
class Defaults:
    """What the next server starts with.

    Args:
        percentage: Share of the multiprocessors.
        priority: 0 or 1.
        bytes_by_ordinal: Pinned limits; 0 is none.
        bytes_by_uuid: Those of UUIDs that the daemon does not see.
    """

    percentage: float = 100.0
    priority: int = 0
    bytes_by_ordinal: list[int] = field(default_factory=lambda: [0] * wire_format.DEVICES)
    bytes_by_uuid: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontEnd:
    """The control program that is connected.

    Args:
        connection: Its socket.
        uid: Who runs it.
        privileged: It came through the privileged socket.
    """

    connection: socket.socket
    uid: int
    privileged: bool


class ControlDaemon:
    """The daemon.

    Args:
        profile: The driver.
        places: What it has opened.
        defaults: What the environment has set.
    """

    def __init__(self, profile: MpsProfile, places: DaemonPaths, defaults: Defaults) -> None:
        self.profile = profile
        self.defaults = defaults
        self.servers = Servers(
            self.log,
            places.pipe_directory,
            tells_failed_setuid=self.profile.tells_failed_setuid,
        )
        self._places = places
        self._front_end: FrontEnd | None = None
        self._wake_read, self._wake_write = os.pipe()

    def log(self, text: str) -> None:
        """Write a line of the daemon's own, after what others have written before."""
        self._drain_records()
        self._write_lines(pack_record(CONTROL, os.getpid(), text))

    def run(self) -> int:
        """Serve until `quit`; the exit status."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        directory = self._places.pipe_directory
        self.log(f"Starting control daemon using socket {directory}/control")
        self.log(
            "To connect CUDA applications to this daemon, set env "
            f"CUDA_MPS_PIPE_DIRECTORY={directory}"
        )
        if self.profile.names_version:
            self.log(f"CUDA MPS Control binary version: {self.profile.binary_version}")
        while not self.servers.have_ended:
            self._serve_once(self.servers.advance())
        return self._end()

    def _serve_once(self, timeout_s: float | None) -> None:
        places = self._places
        handlers: dict[int, Callable[[], None]] = {
            self._wake_read: self._collect,
            places.records: self._drain_records,
            places.privileged.fileno(): lambda: self._accept(places.privileged, privileged=True),
            places.control.fileno(): lambda: self._accept(places.control, privileged=False),
        }
        if self._front_end is not None:
            handlers[self._front_end.connection.fileno()] = self._hear_front_end
        poll = select.poll()
        for descriptor in handlers:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000 + 1):
            if self.servers.have_ended:
                return
            handlers[descriptor]()

    def _collect(self) -> None:
        """Take note of servers that have ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, raw_status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.servers.note_exit(pid, raw_status)

    # -- those that connect ------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, *, privileged: bool) -> None:
        self.log("Accepting connection...")
        connection, _ = listener.accept()
        pid, uid, kind = 0, 0, 0
        try:
            pid, uid = self._greet(connection, privileged=privileged)
            try:
                kind = wire_format.receive_number(connection)
            except wire_format.Closed:
                raise _Refused("Unable to read new connection type information") from None
            if kind not in (wire_format.SERVER, wire_format.CLIENT, wire_format.UI):
                raise _Refused("Unknown type of connection")
            if kind == wire_format.SERVER:
                self._welcome_server(connection, pid, uid)
        except _Refused as refusal:
            self.log(str(refusal))
            connection.close()
            return
        if kind == wire_format.CLIENT:
            self._take_client(connection, pid, uid)
        elif kind == wire_format.UI:
            self._open_front_end(FrontEnd(connection, uid, privileged))

    def _greet(self, connection: socket.socket, *, privileged: bool) -> tuple[int, int]:
        """Say hello and take the credentials: pid and uid, as the kernel says."""
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            wire_format.send(connection, wire_format.HELLO)
            message = wire_format.receive(connection)
        except wire_format.Closed:
            raise _Refused("User did not send valid credentials") from None
        wire_format.drop(message.descriptors)
        if message.data != wire_format.CREDENTIALS or message.pid is None or message.uid is None:
            raise _Refused("User did not send valid credentials")
        if privileged and message.uid not in (os.geteuid(), 0):
            raise _Refused("Unable to accept priviliged connection from other user")
        return message.pid, message.uid

    def _welcome_server(self, connection: socket.socket, pid: int, uid: int) -> None:
        entry = self.servers.find(pid)
        if entry is None:
            raise _Refused(f"NEW SERVER {pid}: Ignoring old connection request")
        if uid not in (entry.uid, 0):
            raise _Refused(f"NEW SERVER {pid}: Ignoring connection from user")
        self.log(f"NEW SERVER {pid}: Ready")
        defaults = self.defaults
        try:
            wire_format.drop(wire_format.receive(connection).descriptors)
            wire_format.send_value(connection, "d", defaults.percentage)
            wire_format.send_value(connection, "q", wire_format.DEVICES)
            for limit_bytes in defaults.bytes_by_ordinal:
                wire_format.send_value(connection, "q", limit_bytes)
            wire_format.send_number(connection, defaults.priority)
        except wire_format.Closed:
            connection.close()
            return
        self.servers.note_ready(entry, ServerLink(connection))

    def _take_client(self, connection: socket.socket, pid: int, uid: int) -> None:
        if self.servers.quitting:
            connection.close()
            return
        entry = self.servers.want(uid)
        if entry.link is not None:
            self.log(f"NEW CLIENT {pid} from user {uid}: Server already exists")
            self.servers.hand_over(entry, connection)
        else:
            self.log(
                f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending "
                "list"
            )
            entry.pending.append(connection)

    # -- the control program -----------------------------------------------------------------------

    def _open_front_end(self, front_end: FrontEnd) -> None:
        if self._front_end is not None:
            # Turned away without a word, and mostly with exit status 0 (550).
            front_end.connection.close()
            return
        self.log("NEW UI")
        self._front_end = front_end

    def _hear_front_end(self) -> None:
        front_end = self._front_end
        assert front_end is not None
        connection = front_end.connection
        try:
            length = int(wire_format.receive_value(connection, "q"))
            if length > 0:
                line = wire_format.receive(connection).data.rstrip(b"\0").decode(errors="replace")
                run_command(self, front_end, line.rstrip("\n"))
            elif not self.servers.quitting:
                wire_format.send(connection, struct.pack("ii", wire_format.END, 0))
                self._close_front_end()
            # While it is quitting, one is kept for the exit status: it seems to hang (550).
        except wire_format.Closed:
            self._close_front_end()

    def _close_front_end(self) -> None:
        if self._front_end is not None:
            self._front_end.connection.close()
            self._front_end = None
            self.log("UI closed")

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> int:
        places, status = self._places, self.servers.exit_status
        wedges = self.profile.wedges
        if not wedges:
            self._remove_files()
            os.close(places.lock)
        if self._front_end is not None:
            with contextlib.suppress(wire_format.Closed):
                data = struct.pack("ii", wire_format.END, status)
                wire_format.send(self._front_end.connection, data)
            # What it has sent meanwhile is not read, so the kernel may throw the answer away, and
            # its exit status is 0 instead (550).
            self._front_end.connection.close()
        places.control.close()
        places.privileged.close()
        self.log(f"Exit with status {status}")
        if wedges:
            # The lock goes before the fifo does: a daemon that starts in between hangs.
            os.close(places.lock)
            time.sleep(_WEDGING_LINGER_S)
            self._remove_files()
        else:
            time.sleep(_LINGER_S)
        return status

    def _remove_files(self) -> None:
        for path in (f"{self._places.pipe_directory}/log", self._places.pid_file):
            with contextlib.suppress(OSError):
                os.unlink(path)

    # -- logs --------------------------------------------------------------------------------------

    def _drain_records(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._places.records, 65536):
                self._write_lines(data)

    def _write_lines(self, data: bytes) -> None:
        for who, line in parse_records(data):
            descriptor = self._places.logs[0 if who == CONTROL else 1]
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.write(descriptor, line.encode())


class _Refused(Exception):
    """A connection is not taken; the text goes to the log."""
