"""The servers of the simulated control daemon: one runs, those of other users wait for its end.

Which server starts when, how it is told to end, how often that is tried again and what becomes of
clients whose server does not start: as 550.163.01 does it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.daemon_logs import CONTROL, RecordWriter
from slurm_colloc_lab.simgpu.mps.server_link import ServerLink

PROGRAM = "nvidia-cuda-mps-server"

# With clients waiting, a server that ends before it is ready is started so often in all.
_STARTS = 6
_FIRST_BACKOFF_MS = 200
_LONGEST_BACKOFF_MS = 300_000


@dataclass(eq=False)
class ServerEntry:
    """A user's server, wanted or running.

    Args:
        uid: The user.
        pid: Its process, 0 where there is none.
        link: The connection to it, where it takes clients.
        pending: Clients that wait for it.
        failures: How often it has ended since it was last ready.
        stopping: It is to end.
    """

    uid: int
    pid: int = 0
    link: ServerLink | None = None
    pending: list[socket.socket] = field(default_factory=list)
    failures: int = 0
    stopping: bool = False
    _parted: ServerLink | None = None

    @property
    def is_running(self) -> bool:
        """There is a process."""
        return self.pid != 0

    def part(self) -> None:
        """It takes no clients any more, but its connection stays open until it ends."""
        if self.link is not None:
            self._parted, self.link = self.link, None

    def note_end(self) -> None:
        """Its process is gone."""
        self.part()
        if self._parted is not None:
            self._parted.close()
            self._parted = None
        self.pid = 0
        self.stopping = False
        self.failures += 1


class Servers:
    """All of them.

    Args:
        log: Writes a line to the daemon's log.
        pipe_directory: CUDA_MPS_PIPE_DIRECTORY.
        tells_failed_setuid: See MpsProfile.
    """

    def __init__(
        self, log: Callable[[str], None], pipe_directory: str, *, tells_failed_setuid: bool
    ) -> None:
        self.quitting = False
        self.force_at: float | None = None
        self.exit_status = 0
        self._log = log
        self._pipe_directory = pipe_directory
        self._tells_failed_setuid = tells_failed_setuid
        self._entries: list[ServerEntry] = []
        self._current: ServerEntry | None = None
        self._retry_at: float | None = None
        self._backoff_ms = _FIRST_BACKOFF_MS

    def __iter__(self) -> Iterator[ServerEntry]:
        return iter(tuple(self._entries))

    @property
    def have_ended(self) -> bool:
        """`quit` has been asked for, and no server is left."""
        return self.quitting and not self._entries

    def find(self, pid: int) -> ServerEntry | None:
        """The running server with that pid."""
        return next((entry for entry in self if pid and entry.pid == pid), None)

    def want(self, uid: int) -> ServerEntry:
        """See that a user gets a server, once no other user's is in the way."""
        entry = next((entry for entry in self if entry.uid == uid), None)
        if entry is None:
            entry = ServerEntry(uid)
            self._entries.append(entry)
        return entry

    def quit(self, force_after_s: int | None) -> None:
        """End them all; with a number by SIGINT, once so many seconds have passed."""
        self.quitting = True
        if force_after_s is not None:
            self.force_at = time.monotonic() + force_after_s
        for entry in self:
            if entry.is_running:
                self.shut_down(entry)
            else:
                self._forget(entry)

    def shut_down(self, entry: ServerEntry, *, retry: bool = False, force: bool = False) -> None:
        """Tell a server to end as soon as it has no clients, or with `force` at once (SIGINT).

        One that is not ready yet hears it only when it is.
        """
        entry.stopping = True
        if entry.link is not None:
            self._ask_to_end(entry, entry.link, retry=retry)
        if force and entry.is_running:
            self._log(f"Force shutting down server {entry.pid}")
            entry.part()
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGINT)  # noqa: TID251 - its own
        if entry.link is not None:
            self._log(
                f"Control will try shutting down server {entry.pid} again in at most "
                f"{self._backoff_ms}ms"
            )
            self._retry_at = time.monotonic() + self._backoff_ms / 1000

    def advance(self) -> float | None:
        """Do what is due: force or press a server, start the next one.

        Returns:
            Seconds until something may be due, None where only an event can bring it.
        """
        now = time.monotonic()
        if self.force_at is not None and now >= self.force_at:
            self.force_at = None
            for entry in self:
                self.shut_down(entry, force=True)
        elif self._retry_at is not None:
            if now >= self._retry_at and self._current is not None:
                self._retry_at = None
                self.shut_down(self._current, retry=True)
        else:
            self._start_next()
        ends = [at for at in (self._retry_at, self.force_at) if at is not None]
        return max(0.0, min(ends) - now) if ends else None

    def note_exit(self, pid: int, raw_status: int) -> None:
        """A child has ended. A signal is no exit status: then 0 is what is shown."""
        status = os.WEXITSTATUS(raw_status) if os.WIFEXITED(raw_status) else 0
        self._log(f"Server {pid} exited with status {status}")
        self.exit_status = self.exit_status or status
        entry = self.find(pid)
        if entry is None:
            return
        entry.note_end()
        self._current = None
        self._retry_at = None
        if not entry.pending or entry.failures >= _STARTS or self.quitting:
            self._forget(entry)

    def note_ready(self, entry: ServerEntry, link: ServerLink) -> None:
        """A server takes clients: those that have waited are handed over."""
        entry.link = link
        entry.failures = 0
        while entry.pending:
            self.hand_over(entry, entry.pending.pop(0))
        if entry.stopping:
            self.shut_down(entry)

    def hand_over(self, entry: ServerEntry, client: socket.socket) -> None:
        """Give client and server the two ends of a socket."""
        assert entry.link is not None
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for end in ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            entry.link.take_client(ends[1].fileno())
            wire_format.send_descriptor(client, ends[0].fileno())
            wire_format.receive_number(client)
        except wire_format.Closed:
            pass
        finally:
            for end in (*ends, client):
                end.close()

    def _forget(self, entry: ServerEntry) -> None:
        self._entries.remove(entry)
        for waiting in entry.pending:
            waiting.close()

    def _start_next(self) -> None:
        wanted = next((entry for entry in self if not entry.is_running), None)
        if wanted is None or self.quitting:
            return
        if self._current is None:
            self._start(wanted)
        elif self._current.link is not None:
            self.shut_down(self._current)

    def _start(self, entry: ServerEntry) -> None:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._become_server(entry.uid)
        entry.pid = pid
        self._current = entry
        # Who has just been started waits behind the others, should it end again.
        self._entries.remove(entry)
        self._entries.append(entry)

    def _become_server(self, uid: int) -> None:
        """In the child: setuid alone, so gid and groups stay the daemon's, and PATH decides."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = RecordWriter(self._pipe_directory)
            log.write(CONTROL, f"Starting new server {os.getpid()} for user {uid}")
            try:
                os.setuid(uid)
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                if self._tells_failed_setuid:
                    log.write(CONTROL, f"Failed to start server using uid {uid}. {reason}")
                os._exit(1)
            with contextlib.suppress(OSError):
                os.execvp(PROGRAM, [PROGRAM])
        finally:
            os._exit(1)

    def _ask_to_end(self, entry: ServerEntry, link: ServerLink, *, retry: bool) -> None:
        backoff = "enabled" if retry else "disabled"
        self._log(f"Try shutting down server {entry.pid}, backoff is {backoff}")
        self._retry_at = None
        active = link.ask_to_end()
        if active == 0:
            entry.part()
            self._backoff_ms = _FIRST_BACKOFF_MS
            return
        if retry:
            self._backoff_ms = min(2 * self._backoff_ms, _LONGEST_BACKOFF_MS)
        self._log(
            f"Server {entry.pid} has {active} active worker threads. Server will not shutdown."
        )
