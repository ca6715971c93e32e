"""Ending a pack's own MPS daemon so that nothing is left: processes, GPU, files; who: the user.

Also: what dead keepers have left on this node: ended and removed by the next keeper.

Root's hooks ask no daemon anything and end theirs in another way (undoing).

`quit` can hang for ever, and so can every other command meanwhile; ending the daemon alone can
leave its server behind (550). So each step has its own limit, and the last word is SIGKILL for the
whole session, proven process by process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.mps.mps_control import BUSY, parse_pids
from slurm_colloc.host.mps.mps_logs import write_logs
from slurm_colloc.host.mps.mps_state import (
    DaemonState,
    MpsOptions,
    StopReport,
    Sweeping,
    read_state,
)
from slurm_colloc.host.mps.start_daemon import RunningMps
from slurm_colloc.host.nvml.nvml_query import NvmlQuestion, start_question
from slurm_colloc.host.system.child_programs import collect
from slurm_colloc.host.system.directories import (
    BASES,
    PrivateDirectory,
    is_half_made,
    list_private_directories,
    open_private_directory,
    remove_directory,
)
from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    identify,
    is_alive,
    list_processes,
    read_boot_id,
    read_environment,
    read_pid_namespace,
    read_uid,
    wait_until_ended,
)
from slurm_colloc.host.system.signals import INTERRUPT, KILL, TERMINATE, end_members

QUIT_S = 2.0
LIST_S = 2.0
NVML_S = 2.0
_TERMINATE_S = 1.0
_CLIENT_KILL_S = 2.0
_RELIST_S = 0.1
_AFTER_QUIT_S = 0.5
_SIGNALS = ((INTERRUPT, 0.3), (TERMINATE, 0.3), (KILL, 2.0))
_PROGRAM = "nvidia-cuda-mps"
_IN_KERNEL = "D"
"""State of a process that waits inside the kernel, where no signal reaches it (proc(5))."""


@dataclass(frozen=True)
class _Group:
    """Processes of this user's that belong to one pack, by what this program knows of them."""

    find: Callable[[], list[ProcessId]]
    is_member: Callable[[Process], bool]

    def list_members(self) -> list[ProcessId]:
        return self.find()

    def contains(self, process: Process) -> bool:
        return self.is_member(process)


class _Stopping:
    """One stop: what has been learned and done so far."""

    def __init__(self, running: RunningMps, *, searches_all: bool) -> None:
        self.running = running
        self.searches_all = searches_all
        self.notes: list[str] = []
        self.clients: set[ProcessId] = set(running.clients.values())
        self.forced = False
        self.hangs = False
        self.is_busy = False
        self.quit_ms: float | None = None

    # -- who is ours --------------------------------------------------------------------------

    def find_own(self) -> list[ProcessId]:
        """The daemon, its servers, and whatever else lives in its session; proven, alive."""
        return sorted(process.id for process in list_processes() if self._is_own(process))

    def _is_own(self, process: Process) -> bool:
        if process.has_ended:
            return False
        daemon = self.running.daemon
        if process.id in (daemon, *self.running.state.servers):
            return True
        if process.session_id == daemon.pid:
            return is_alive(daemon) or self._is_of_this_directory(process)
        return self.searches_all and self._is_program_of_this_directory(process)

    def _is_of_this_directory(self, process: Process) -> bool:
        """It was started with this daemon's pipe directory, a name that no other has had."""
        pipe = read_environment(process.id.pid).get("CUDA_MPS_PIPE_DIRECTORY")
        return (
            pipe == self.running.directory.pipe_path
            and read_uid(process.id.pid) == self.running.uid
        )

    def _is_program_of_this_directory(self, process: Process) -> bool:
        # Members have the same pipe directory, so the name is asked for as well.
        return process.name.startswith(_PROGRAM) and self._is_of_this_directory(process)

    def list_clients(self) -> set[ProcessId]:
        """Processes that are clients now: listed before and after they were identified."""
        answer = self.running.control.ask("get_server_list", LIST_S)
        servers = parse_pids(answer)
        if servers is None:
            self.is_busy = answer.problem == BUSY
            self.hangs = not self.is_busy
            words = f": {answer.problem}" if answer.problem else ""
            self.notes.append(f"the MPS daemon did not say who its servers are{words}")
            return set()
        for server_pid in servers:
            self.running.note_server(server_pid)
        first = self._read_clients(servers)
        if not first:
            return set()
        # Identified before its uid is read: a pid may be given out again between the two.
        known = {pid: identify(pid) for pid in first}
        own = {i for pid, i in known.items() if i and read_uid(pid) == self.running.uid}
        second = self._read_clients(servers)
        found = {identity for identity in own if identity.pid in second}
        self.clients |= found
        return found

    def _read_clients(self, servers: Iterable[int]) -> set[int]:
        control = self.running.control
        found: set[int] = set()
        for server in servers:
            clients = control.read_clients(server, LIST_S)
            # The daemon may still list one that was killed a moment ago.
            is_silent = clients is None and identify(server) is not None
            if is_silent and server in (control.read_servers(LIST_S) or (server,)):
                self.hangs = True
                self.notes.append(f"the MPS daemon did not say who the clients of {server} are")
            found.update(clients or ())
        return found

    # -- steps --------------------------------------------------------------------------------

    def end_clients(self, grace_s: float) -> tuple[int, ...]:
        """Wait for clients to leave; then end their work, then themselves.

        Returns:
            Pids that even SIGKILL does not end.
        """
        clients = self.list_clients()
        deadline = time.monotonic() + grace_s
        while clients and time.monotonic() < deadline:
            wait_until_ended(clients, min(deadline, time.monotonic() + _RELIST_S))
            clients = self.list_clients()
        if not clients:
            return ()
        self.forced = True
        pids = sorted(client.pid for client in clients)
        self.notes.append(f"clients had to be ended: {', '.join(map(str, pids))}")
        control = self.running.control
        for server in control.read_servers(LIST_S) or ():
            for pid in set(control.read_clients(server, LIST_S) or ()) & set(pids):
                control.ask(f"terminate_client {server} {pid}", _TERMINATE_S)
        left = self._end(
            _Group(
                lambda: [identity for identity in clients if is_alive(identity)],
                lambda process: process.id in clients,
            ),
            ((KILL, _CLIENT_KILL_S),),
        )
        return tuple(sorted(process.id.pid for process in left if process.state == _IN_KERNEL))

    def _end(self, group: _Group, steps: Sequence[tuple[int, float]]) -> tuple[Process, ...]:
        owner = self.running.state.owner
        return end_members(
            group,
            steps,
            owner=None if owner is None else owner.uid,
            reason="the pack ends its MPS daemon",
        )

    def quit(self) -> None:
        """Ask the daemon to end with its servers, and wait for the process itself."""
        running = self.running
        started = time.monotonic()
        left_s = QUIT_S
        while left_s > 0:
            answer = running.control.quit(left_s)
            if answer.problem:
                self.notes.append(f"quit: {answer.problem}")
                return
            elapsed_s = time.monotonic() - started
            if not wait_until_ended([running.daemon], time.monotonic() + _AFTER_QUIT_S):
                self.quit_ms = elapsed_s * 1000
                return
            # It has served another control program, or does not end.
            left_s = started + QUIT_S - time.monotonic()
        self.notes.append("quit: the MPS daemon goes on")

    def end_processes(self) -> tuple[Process, ...]:
        """Signals for what is still there.

        Returns:
            What is left all the same.
        """
        left: tuple[Process, ...] = ()
        if self.find_own():
            self.forced = True
            left = self._end(_Group(self.find_own, self._is_own), _SIGNALS)
        if self.running.child is not None:
            collect(self.running.child, _AFTER_QUIT_S)
        return left

    def read_gpu_processes(self, question: NvmlQuestion | None) -> tuple[int, ...] | None:
        """Which of our processes NVML still shows; None where it cannot be read."""
        if question is None:
            return None
        answer = question.ask(NVML_S)
        known = (*self.clients, *self.running.state.servers, self.running.daemon)
        shown: set[int] = set()
        for uuid in self.running.state.gpus:
            gpu = answer.find(uuid)
            if gpu is None or gpu.processes is None:
                reason = answer.problem or f"NVML shows no processes of {uuid}"
                self.notes.append(f"the GPU was not checked: {reason}")
                return None
            processes = (*gpu.processes, *(gpu.mps_processes or ()))
            shown |= {process.pid for process in processes}
        # NVML shows a process a moment longer than it lives.
        return tuple(sorted({i.pid for i in known if i.pid in shown and is_alive(i)}))

    def copy_logs(self, prefix: str) -> tuple[str, ...]:
        """Copy the logs."""
        target = self.running.options.logs_to
        if target is None:
            return ()
        try:
            return write_logs(target, prefix, self.running.logs.read_whole())
        except OSError as error:
            self.notes.append(f"the MPS logs could not be copied to {target}: {error}")
            return ()


def find_use(running: RunningMps) -> str:
    """What a daemon is used for now, in words; empty for nothing, or where it does not answer."""
    stopping = _Stopping(running, searches_all=False)
    if stopping.list_clients():
        return "its daemon still serves clients"
    return "its daemon serves a control program" if stopping.is_busy else ""


def stop_daemon(
    running: RunningMps,
    *,
    grace_s: float = 0.5,
    logs_prefix: str = "",
    asks_nvml: bool = True,
    has_directory: bool = True,
    searches_all: bool = False,
) -> StopReport:
    """End a daemon and everything that belongs to it.

    Args:
        running: The daemon; `running.options.logs_to` gets its logs.
        grace_s: How long clients may take to leave. The caller has ended them.
        logs_prefix: What the names of the copied logs begin with.
        asks_nvml: Look at the GPU afterwards.
        has_directory: False where the caller has removed it, and with it the control socket.
        searches_all: Look at all processes for servers that were not noted.
    """
    started = time.monotonic()
    # Gets ready while the daemon ends.
    question = _start_question(running) if asks_nvml else None
    stopping = _Stopping(running, searches_all=searches_all)
    unkillable: tuple[int, ...] = ()
    if has_directory and is_alive(running.daemon):
        unkillable = stopping.end_clients(grace_s)
        # It would wait for a client that cannot be ended.
        if not (unkillable or stopping.hangs):
            stopping.quit()
    left_alive = stopping.end_processes()
    unkillable += tuple(process.id.pid for process in left_alive if process.state == _IN_KERNEL)
    for process in left_alive:
        stopping.notes.append(f"process {process.id.pid} ({process.name}) is still there")
    gpu_processes = stopping.read_gpu_processes(question)
    logs = stopping.copy_logs(logs_prefix)
    left: tuple[str, ...] = ()
    removed = False
    if has_directory and not (unkillable or left_alive):
        left = remove_directory(running.directory.path, running.directory.descriptor)
        removed = not left
    running.logs.close()
    running.directory.close()
    return StopReport(
        elapsed_ms=(time.monotonic() - started) * 1000,
        quit_ms=stopping.quit_ms,
        forced=stopping.forced,
        unkillable=unkillable,
        gpu_processes=gpu_processes,
        directory_removed=removed,
        left=left,
        logs=logs,
        notes=tuple(stopping.notes),
    )


def _start_question(running: RunningMps) -> NvmlQuestion:
    """As root in a clean environment; as a user in the user's, where a library may be named."""
    return start_question() if running.state.owner else NvmlQuestion()


# ---- What dead keepers have left on this node: ended and removed by the next keeper --------------

_LOCK_POLL_S = 0.01


def recover(
    path: str, *, grace_s: float = 0.0, logs_to: str | None = None, patience_s: float = 0.0
) -> StopReport:
    """End and remove what a dead keeper has left.

    Args:
        path: The private directory.
        grace_s: How long clients may take to leave.
        logs_to: Directory for copies of the logs.
        patience_s: How long the lock may still be held: a child that the keeper had just forked
            has it, too, until it is another program. And how long another pack's sweep may take
            that has begun to remove the directory.

    Raises:
        BlockingIOError: Its keeper lives.
        FileNotFoundError: It is not there, or not any more.
        NodeError: It is not a directory of this user's packs.
        StateError: Its state cannot be read.
        OSError: It cannot be opened.
    """
    deadline = time.monotonic() + patience_s
    while True:
        is_late = time.monotonic() > deadline
        try:
            # Without a lock, a process was removing it and has ended half-way.
            directory = open_private_directory(path, makes_lock=is_late)
            break
        except BlockingIOError:
            if is_late:
                raise
        except FileNotFoundError:
            if is_late or not os.path.lexists(path):
                raise
        time.sleep(_LOCK_POLL_S)
    try:
        state = read_state(directory.descriptor)
    except StateError:
        directory.close()
        raise
    return _end_left(directory, state, grace_s, logs_to)


def find_directories(bases: Sequence[str], keeper_pid: int) -> tuple[str, ...]:
    """The directories that a keeper has made, whether it lives or not.

    Args:
        bases: Where it makes them.
        keeper_pid: Its pid; the caller knows that no other process has had it since.
    """
    found = []
    for path in list_private_directories(bases):
        with contextlib.suppress(OSError, StateError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                state = read_state(descriptor)
            finally:
                os.close(descriptor)
            if state is not None and state.keeper.pid == keeper_pid:
                found.append(path)
    return tuple(found)


def _end_left(
    directory: PrivateDirectory, state: DaemonState | None, grace_s: float, logs_to: str | None
) -> StopReport:
    if state is None or state.boot != read_boot_id():
        # It had not come to a daemon, or the node has been rebooted since.
        left = remove_directory(directory.path, directory.descriptor)
        directory.close()
        return StopReport(elapsed_ms=0.0, directory_removed=not left, left=left)
    running = rebuild(directory, state, logs_to)
    return stop_daemon(running, grace_s=grace_s, logs_prefix="mps.left.", searches_all=True)


def rebuild(directory: PrivateDirectory, state: DaemonState, logs_to: str | None) -> RunningMps:
    """Take over a dead keeper's daemon; its environment tells one that is not written down."""
    options = MpsOptions(gpus=state.gpus, label=state.label, logs_to=logs_to)
    return RunningMps.take_over(options, directory, state)


def sweep(bases: Sequence[str] = BASES) -> tuple[Sweeping, ...]:
    """End and remove what this user's dead packs have left on this node.

    A directory whose lock is held is alive. One whose daemon still serves a client is left for the
    next time, and so is one from another pid namespace, whose processes cannot be told from here.
    """
    swept = []
    for path in list_private_directories(bases):
        try:
            directory = open_private_directory(path)
        except BlockingIOError:
            continue
        except (OSError, CollocError):
            if is_half_made(path):
                left = remove_directory(path)
                report = StopReport(elapsed_ms=0.0, directory_removed=not left, left=left)
                swept.append(Sweeping(path, "", report))
            continue
        swept.append(_sweep_one(directory))
    return tuple(swept)


def _sweep_one(directory: PrivateDirectory) -> Sweeping:
    path = directory.path
    try:
        state = read_state(directory.descriptor)
    except StateError as error:
        directory.close()
        return Sweeping(path, "", None, str(error))
    if state is None:
        return Sweeping(path, "", _end_left(directory, None, 0.0, None))
    reason = ""
    if state.boot == read_boot_id():
        if state.pid_namespace != read_pid_namespace():
            reason = "it was made in another pid namespace"
        else:
            running = rebuild(directory, state, None)
            if is_alive(running.daemon):
                reason = find_use(running)
    if reason:
        directory.close()
        return Sweeping(path, state.label, None, reason)
    return Sweeping(path, state.label, _end_left(directory, state, 0.0, None))
