"""The keeper: a process that is the MPS daemon's parent; who: the user; where: with the runner.

Also: the keeper's process: what Slurm's signals, orphans and standard streams are to it; watching
an MPS daemon: what its logs say and it answers, as messages of the keeper's.

It starts the daemon, tells the runner what happens to it, and outlives the runner for as long as it
takes to end everything: the end of its standard input means that it alone is left to do so. A
daemon that root has prepared is only watched, and left alone at the end (prepared_daemon).
Messages are those of host.keeper.keeper_messages, the options first; nothing else is written to
standard output. Signals that Slurm sends to the processes of a step are ignored, except SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.host.keeper.keeper_messages import (
    ControlProved,
    DaemonDied,
    Event,
    Failed,
    Ready,
    ServerClients,
    Status,
    Stopped,
    decode,
    encode,
)
from slurm_colloc.host.mps.mps_control import ACTIVE, EXITED, ListedClient, parse_pids
from slurm_colloc.host.mps.mps_logs import (
    ClientJoined,
    ClientLeft,
    DaemonTrouble,
    LogEvent,
    ServerStatus,
    read_last_words,
    write_logs,
)
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport
from slurm_colloc.host.mps.start_daemon import (
    NO_WORD,
    RunningMps,
    explain_end,
    start_daemon,
    start_server,
)
from slurm_colloc.host.mps.stop_daemon import stop_daemon, sweep
from slurm_colloc.host.system.child_programs import Child
from slurm_colloc.host.system.directories import BASES, remove_at_once, remove_directory
from slurm_colloc.host.system.node_processes import (
    is_alive,
    read_uid,
)

# ---- The keeper's process: what Slurm's signals, orphans and standard streams are to it ----------

_IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
)
_PR_SET_CHILD_SUBREAPER = 36


def take_over() -> tuple[int, int]:
    """Make this process one that outlives its runner and reaps what the daemon leaves.

    Returns:
        Descriptors of what were its standard input and output, for the channel to the runner.
    """
    os.umask(0o077)
    os.chdir("/")
    for number in _IGNORED:
        # A function, not SIG_IGN: the daemon and its server must not inherit it.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The channels get other numbers than standard streams have: children must not inherit them.
    stdin, stdout = (os.dup(number) for number in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    return stdin, stdout


def collect_orphans(child: Child | None) -> None:
    """Collect servers whose daemon has died: they come to the keeper, which is their reaper.

    Args:
        child: The daemon, whose exit status is kept; None where it is no child of this process.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            if child is not None and found.si_pid == child.pid:
                # Its status is needed.
                child.poll()
            else:
                os.waitpid(found.si_pid, os.WNOHANG)


_READ_BYTES = 65536


class Channel:
    """Requests in, events out.

    Args:
        requests: Descriptor of the runner's requests.
        events: Descriptor for events.
    """

    def __init__(self, requests: int, events: int) -> None:
        self._in = requests
        self._out = events
        self._partial = b""
        self.requests: list[dict[str, Any]] = []
        """What the runner has asked for and was not done yet."""
        self.is_abandoned = False
        """The runner has gone."""

    def listen(self, timeout_s: float) -> None:
        """Wait for a request, or for the runner's end."""
        if self.is_abandoned:
            time.sleep(timeout_s)
            return
        poll = select.poll()
        poll.register(self._in, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return
        data = os.read(self._in, _READ_BYTES)
        self.is_abandoned = not data
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(CollocError):
                request = decode(line)
                if isinstance(request, dict):
                    self.requests.append(request)

    def say(self, event: Event) -> None:
        """Tell the runner, if it is there."""
        data = encode(event)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._out, data) :]

    def close_requests(self) -> None:
        """In a forked child: leave the requests to its parent."""
        os.close(self._in)


# ---- Watching an MPS daemon: what its logs say and it answers, as messages of the keeper's -------

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
        ready = any(isinstance(e, ServerStatus) and e.status == ACTIVE for e in fresh)
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
        if isinstance(event, DaemonTrouble):
            raise NodeError(f"the MPS server cannot start: {event.text}")
        if isinstance(event, ServerStatus) and event.status == EXITED:
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
            self._say(DaemonDied(None if child is None else child.returncode))

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
            if isinstance(event, ServerStatus):
                self.running.note_server(event.server_pid)
            elif isinstance(event, ClientJoined):
                self.running.note_client(event.pid)
                self._joined.add(event.pid)
            elif isinstance(event, ClientLeft):
                self._joined.discard(event.pid)
            self._say(event)

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
    problem = ""
    servers = []
    for server_pid in server_pids:
        running.note_server(server_pid)
        clients = control.read_clients(server_pid)
        if clients is None:
            problem = f"server {server_pid} does not tell its clients"
        found = [ListedClient(pid, server_pid) for pid in clients or ()]
        status = control.read_server_status(server_pid)
        servers.append(ServerClients(server_pid, read_uid(server_pid), status, tuple(found)))
    return Status(tuple(servers), problem)


# ----
# The keeper: a process that is the MPS daemon's parent; who: the user; where: with the runner.

_TICK_S = 0.1
_PROOF_S = 5.0


class Keeper:
    """One keeper.

    Args:
        channel: To the runner.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._say = channel.say
        self._generation = 0
        self._watch: DaemonWatch | None = None

    def run(self) -> int:
        """Keep one daemon until the runner has had enough, or has gone."""
        options = self._read_options()
        if options is None:
            return 2
        try:
            return self._keep(options)
        finally:
            if self._watch is not None:
                # Something unforeseen: it is told on standard error, and nothing is left.
                self._stop(0.0, asks_nvml=False)

    def _keep(self, options: MpsOptions) -> int:
        if not self._start(options):
            return 1
        self._sweep(options)
        while True:
            self._channel.listen(_TICK_S)
            if self._channel.is_abandoned:
                return self._end_abandoned()
            self._watched.look()
            while self._channel.requests:
                if not self._handle(self._channel.requests.pop(0)):
                    return 0

    def _read_options(self) -> MpsOptions | None:
        while not self._channel.requests and not self._channel.is_abandoned:
            self._channel.listen(3600.0)
        if not self._channel.requests:
            return None
        options = self._channel.requests.pop(0).get("options")
        return options if isinstance(options, MpsOptions) else None

    @property
    def _watched(self) -> DaemonWatch:
        assert self._watch is not None
        return self._watch

    # -- starting -----------------------------------------------------------------------------

    def _start(self, options: MpsOptions) -> bool:
        """Start a daemon and say how that went; False where there is none or no runner."""
        self._generation += 1
        try:
            running = self._adopt(options) if options.adopt else start_daemon(options)
        except CollocError as error:
            self._say(Failed(str(error)))
            return False
        self._watch = DaemonWatch(running, self._say)
        self._say(
            ControlProved(
                directory=running.directory.path,
                pipe_directory=running.directory.pipe_path,
                daemon_pid=running.daemon.pid,
                control_ms=running.control_ms,
                refused_bases=running.directory.refused,
            )
        )
        asked_at = time.monotonic()
        server_pid: int | None = None
        try:
            if options.starts_server:
                if not (options.adopt and running.control.read_servers()):
                    start_server(running)
                if options.needs_active:
                    server_pid = wait_for_active(running, self._goes_on)
                    if server_pid is None:
                        return self._break_off()
                    if not options.keeps_server:
                        self._end_proof(running, server_pid)
        except CollocError as error:
            self._watched.tell(running.events)
            self._stop(0.0, asks_nvml=False)
            self._say(Failed(str(error)))
            return False
        active_ms = (time.monotonic() - asked_at) * 1000
        self._say(
            Ready(
                directory=running.directory.path,
                pipe_directory=running.directory.pipe_path,
                daemon_pid=running.daemon.pid,
                server_pid=server_pid,
                version=running.logs.version,
                control_ms=running.control_ms,
                active_ms=None if server_pid is None else active_ms,
                refused_bases=running.directory.refused,
            )
        )
        self._watched.tell(running.events)
        return True

    @staticmethod
    def _adopt(options: MpsOptions) -> RunningMps:
        from slurm_colloc.host.keeper.prepared_daemon import adopt_daemon

        return adopt_daemon(options)

    def _end_proof(self, running: RunningMps, server_pid: int) -> None:
        """End a server that no client has used; the first client brings the next one."""
        running.control.ask(f"shutdown_server {server_pid}")
        deadline = time.monotonic() + _PROOF_S
        while server_pid in (running.control.read_servers() or ()):
            # One that stays does no harm, but it is seen on the GPU.
            if time.monotonic() >= deadline or not self._goes_on(_SETTLE_S):
                return

    def _goes_on(self, wait_s: float) -> bool:
        """Wait while a server starts; False where the runner has gone or wants an end."""
        self._channel.listen(wait_s)
        return not self._channel.is_abandoned and all(
            request.get("request") != "stop" for request in self._channel.requests
        )

    def _break_off(self) -> bool:
        if self._channel.is_abandoned:
            self._end_abandoned()
        else:
            self._say(Stopped(self._stop(0.0, asks_nvml=True)))
        return False

    def _sweep(self, options: MpsOptions) -> None:
        """Clear up after earlier packs, in a process of its own: their daemons may hang."""
        if os.fork() != 0:
            return
        status = 1
        try:
            # The lock says that the keeper lives, not that this process does.
            self._watched.running.directory.close()
            self._channel.close_requests()
            for found in sweep(options.bases or BASES):
                self._say(found)
            status = 0
        finally:
            os._exit(status)

    # -- requests -----------------------------------------------------------------------------

    def _handle(self, request: dict[str, Any]) -> bool:
        """Do what the runner asks for; False where that was the end."""
        kind = request.get("request")
        if kind == "status":
            self._say(self._watched.read_status())
        elif kind == "restart":
            # In the place of one that root had prepared the pack gets one of its own.
            options = replace(self._watched.running.options, adopt="")
            self._stop(0.0, asks_nvml=False)
            return self._start(options)
        elif kind == "stop":
            self._watched.follow(flushes=True)
            self._say(Stopped(self._stop(float(request.get("grace_s", 0.5)), asks_nvml=True)))
            return False
        return True

    # -- the end ------------------------------------------------------------------------------

    def _stop(self, grace_s: float, *, asks_nvml: bool) -> StopReport:
        watch, self._watch = self._watched, None
        running = watch.running
        prefix = f"mps.{self._generation}."
        if running.options.adopt and not watch.has_died:
            from slurm_colloc.host.keeper.prepared_daemon import release_daemon

            return release_daemon(running, prefix)
        return stop_daemon(
            running,
            grace_s=grace_s,
            logs_prefix=prefix,
            asks_nvml=asks_nvml,
            has_directory=not running.options.adopt,
        )

    def _end_abandoned(self) -> int:
        """The runner is gone or lets go, and Slurm may kill this process soon: files first.

        Clients that are connected need no files. They may go on for a while, because members get
        time to end well after a TERM, and for as long as the runner's guard keeps them.
        """
        watch = self._watched
        running = watch.running
        if running.options.adopt:
            self._say(Stopped(self._stop(0.0, asks_nvml=False)))
            return 0
        # Slurm's SIGKILL may be a millisecond away. The logs are open, and need no names.
        path, opened = running.directory.path, running.directory.descriptor
        if not remove_at_once(path, opened):
            remove_directory(path, opened)
        target = running.options.logs_to
        if target is not None:
            with contextlib.suppress(OSError):
                write_logs(target, f"mps.{self._generation}.", running.logs.read_whole())
        deadline = time.monotonic() + running.options.orphan_grace_s
        watch.look()
        guard_pid = running.options.guard_pid
        while watch.has_clients() and not watch.has_died:
            # The guard of the runner adopts this process, and stands while members may live.
            if time.monotonic() >= deadline and (not guard_pid or os.getppid() != guard_pid):
                break
            time.sleep(_TICK_S)
            watch.look()
        # They are copied already.
        running.logs.close()
        report = stop_daemon(running, grace_s=0.0, asks_nvml=False, has_directory=False)
        self._watch = None
        collect_orphans(None)
        # To a runner that has only let go, see KeeperClient.abandon.
        self._say(Stopped(replace(report, directory_removed=True)))
        return 0


def main() -> int:
    """Take the process over and keep."""
    return Keeper(Channel(*take_over())).run()


if __name__ == "__main__":
    sys.exit(main())
