"""Starting a private MPS daemon, and proving that it is the one that was started.

The same code serves a user and root: root passes the job's owner, and everything that touches the
user's files or acts for the user runs as that owner, with uid, gid and groups. Never start the
daemon as root itself: its server would keep root's gid and groups (550, and 580 on an H200).
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_control import (
    COMMAND_S,
    ControlProgram,
    build_daemon_environment,
    find_complaints,
    find_library_path,
    find_programs,
    parse_percentage,
    read_peer,
)
from slurm_colloc.host.mps.mps_state import DaemonState, MpsOptions, write_state
from slurm_colloc.host.system.child_programs import Child, Confinement, collect, start_program
from slurm_colloc.host.system.directories import (
    BASES,
    DAEMON_LOG,
    Owner,
    PrivateDirectory,
    make_private_directory,
    remove_directory,
)
from slurm_colloc.host.system.node_processes import ProcessId, identify, read_process, read_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.mps.mps_logs import LogEvent, LogFollower

# From 580 on the daemon asks CUDA first, and ends without a word: 100 is CUDA_ERROR_NO_DEVICE.
_SILENT_ENDS = {
    100: "CUDA finds none of the GPUs in CUDA_VISIBLE_DEVICES",
    244: "libcuda.so.1 was not found",
}
NO_WORD = "it says nothing"
_POLL_S = 0.001
_BROKEN_OFF_S = 0.5


@dataclass
class RunningMps:
    """A daemon that answers.

    Args:
        options: What was asked for.
        directory: Its private directory, locked.
        state: What stands in that directory.
        daemon: Its process.
        child: The same as a child, where it is one of this process.
        control: Its control program.
        logs: Its logs.
        control_ms: From the start to the proved control socket and its first answer.
        events: What its logs have said while it was waited for.
        clients: Every client that was seen, by pid.
    """

    options: MpsOptions
    directory: PrivateDirectory
    state: DaemonState
    daemon: ProcessId
    child: Child | None
    control: ControlProgram
    logs: LogFollower
    control_ms: float
    events: list[LogEvent] = field(default_factory=list)
    clients: dict[int, ProcessId] = field(default_factory=dict)

    @classmethod
    def take_over(
        cls, options: MpsOptions, directory: PrivateDirectory, state: DaemonState
    ) -> RunningMps:
        """A daemon that was started, whoever started it."""
        # It takes a daemon of one's own longer to come up than to load this.
        from slurm_colloc.host.mps.mps_logs import LogFollower

        uid = os.geteuid() if state.owner is None else state.owner.uid
        return cls(
            options=options,
            directory=directory,
            state=state,
            daemon=state.daemon or ProcessId(-1, -1),
            child=None,
            control=build_control(state, directory),
            logs=LogFollower(directory.descriptor, uid),
            control_ms=0.0,
        )

    @property
    def uid(self) -> int:
        """Whose daemon it is."""
        return os.geteuid() if self.state.owner is None else self.state.owner.uid

    def note_client(self, client_pid: int) -> None:
        """Remember a client that has connected."""
        identity = identify(client_pid)
        # The identity first: a pid may be another process's by the time its uid is read.
        if identity is not None and read_uid(client_pid) == self.uid:
            self.clients[client_pid] = identity

    def note_server(self, server_pid: int) -> None:
        """Remember a server, so that it is found even after the daemon's end.

        What the daemon says is a server is one only in the daemon's own session (550, 580).
        """
        identity = identify(server_pid)
        process = None if identity is None else read_process(server_pid)
        if process is None or process.id != identity or process.session_id != self.daemon.pid:
            return
        if process.id not in self.state.servers:
            self.state = replace(self.state, servers=(*self.state.servers, process.id)[-16:])
            # Without it the session and the servers' environment tell as well.
            with contextlib.suppress(OSError):
                if self.state.owner is None:
                    write_state(self.directory.descriptor, self.state)


def build_control(state: DaemonState, directory: PrivateDirectory) -> ControlProgram:
    """What talks to a daemon, in the environment that the daemon has, too."""
    environment = build_daemon_environment(
        state.programs,
        gpus=state.gpus,
        pipe_directory=directory.pipe_path,
        log_directory=directory.log_path,
        added=state.added,
    )
    return ControlProgram(state.programs, environment, state.owner)


def start_daemon(
    options: MpsOptions,
    *,
    owner: Owner | None = None,
    confinement: Confinement | None = None,
    directory: PrivateDirectory | None = None,
) -> RunningMps:
    """Start a daemon and prove that it answers.

    Args:
        options: What is wanted.
        owner: As root: the job's user.
        confinement: As root: where the daemon writes itself down, and is kept. Its control
            programs end before the hook does, and are out of the user's reach by their group id.
        directory: Its private directory, where the caller has made that already.

    Raises:
        NodeError: It cannot be started; it leaves nothing. As root the caller ends what its
            control groups and its record name.
    """
    programs = find_programs(options.path)
    if directory is None:
        directory = make_private_directory(options.bases or BASES, owner)
    child: Child | None = None
    added = dict(options.environment)
    if owner is None:
        added = {**find_library_path(os.environ), **added}
    try:
        keeper = identify(os.getpid())
        assert keeper is not None
        state = DaemonState(
            label=options.label,
            gpus=options.gpus,
            programs=programs,
            added=added,
            keeper=keeper,
            owner=owner,
        )
        # Root has it in its own checkpoint.
        if owner is None:
            write_state(directory.descriptor, state)
        control = build_control(state, directory)
        started = time.monotonic()
        child = _start_child(control, directory, confinement)
        daemon = identify(child.pid)
        if daemon is not None:
            state = replace(state, daemon=daemon)
            if owner is None:
                write_state(directory.descriptor, state)
        running = RunningMps.take_over(options, directory, state)
        running.child = child
        _prove(running, child, started + options.control_cap_s)
        running.control_ms = (time.monotonic() - started) * 1000
    except BaseException as error:
        _undo(child, directory, owner)
        if isinstance(error, OSError):
            raise NodeError(f"the MPS daemon cannot be started: {error}") from error
        raise
    return running


def _start_child(
    control: ControlProgram, directory: PrivateDirectory, confinement: Confinement | None
) -> Child:
    """In the foreground, as our child: so its end is seen, and its pid is known."""
    owner = control.owner
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(DAEMON_LOG, flags, 0o600, dir_fd=directory.descriptor)
    try:
        if owner is not None:
            # The job's own programs follow it; the directory around it stays root's.
            os.fchown(log, owner.uid, owner.gid)
        return start_program(
            [control.programs.control, "-f"],
            control.environment,
            stdout=log,
            stderr=log,
            owner=owner,
            confinement=confinement,
            own_session=True,
        )
    finally:
        os.close(log)


def _prove(running: RunningMps, child: Child, deadline: float) -> None:
    """Wait until the child itself listens on the socket and answers a command.

    Raises:
        NodeError: It does not.
    """
    directory, uid = running.directory, running.uid
    while True:
        status = child.poll()
        if status is not None:
            raise NodeError(explain_end(status, directory, uid))
        peer = read_peer(directory.pipe_path)
        if peer is not None:
            break
        if time.monotonic() > deadline:
            raise NodeError(
                "the MPS daemon has made no control socket: "
                f"{_read_last_words(directory, uid) or NO_WORD}"
            )
        time.sleep(_POLL_S)
    if peer.pid != child.pid:
        raise NodeError(f"process {peer.pid}, not the MPS daemon, listens on its control socket")
    answer = running.control.ask(
        "get_default_active_thread_percentage", max(0.1, deadline - time.monotonic())
    )
    if parse_percentage(answer) is None:
        words = answer.problem or answer.stdout.strip() or "an empty answer"
        logged = _read_last_words(directory, uid)
        raise NodeError(
            f"the MPS daemon does not answer its control program: {words}"
            f"{f'; its log: {logged}' if logged else ''}"
        )


def _read_last_words(directory: PrivateDirectory, uid: int) -> str:
    from slurm_colloc.host.mps.mps_logs import read_last_words

    return read_last_words(directory.descriptor, uid)


def explain_end(status: int, directory: PrivateDirectory, uid: int) -> str:
    """Why a daemon has ended that had not answered yet, in words.

    Args:
        status: Its exit status, negative for a signal.
        directory: Its private directory.
        uid: Whose daemon it was.
    """
    words = _read_last_words(directory, uid) or _SILENT_ENDS.get(status, NO_WORD)
    ended = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"the MPS daemon ended at once with {ended}: {words}"


def _undo(child: Child | None, directory: PrivateDirectory, owner: Owner | None) -> None:
    # A daemon comes up nearly always.
    from slurm_colloc.host.system.node_processes import ProcessSession
    from slurm_colloc.host.system.signals import KILL, end_members

    leader = None if child is None else read_process(child.pid)
    if child is not None:
        # The child is not collected yet, so its pid cannot be another session's.
        if leader is not None:
            end_members(
                ProcessSession(leader.id),
                ((KILL, _BROKEN_OFF_S),),
                owner=None if owner is None else owner.uid,
                reason="the MPS daemon did not come up",
            )
        collect(child, _BROKEN_OFF_S)
    remove_directory(directory.path, directory.descriptor)
    directory.close()


def _read_complaints(running: RunningMps, mark: int) -> str:
    """What the log has against a command whose own answer may look well; empty for nothing."""
    running.events += running.logs.read()
    complaints = find_complaints(running.logs.get_lines_since(mark))
    return "".join(f"; its log: {line.rpartition('] ')[2]}" for line in complaints)


def start_server(running: RunningMps, timeout_s: float = COMMAND_S) -> None:
    """Ask for a server now, so that the first member does not wait for it.

    Args:
        running: The daemon.
        timeout_s: How long the answer may take.

    Raises:
        NodeError: The daemon refuses.
    """
    running.events += running.logs.read()
    mark = running.logs.lines_read
    answer = running.control.ask(f"start_server -uid {running.uid}", timeout_s)
    words = answer.problem or answer.stdout.strip() or _read_complaints(running, mark)
    if words:
        raise NodeError(f"the MPS daemon starts no server: {words.lstrip('; ')}")
