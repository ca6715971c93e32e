"""What dead keepers have left on this node: ended and removed by the next keeper."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.mps.mps_control import ControlProgram, build_daemon_environment
from slurm_colloc.host.mps.mps_log_files import LogFollower
from slurm_colloc.host.mps.mps_options import MpsOptions, StopReport
from slurm_colloc.host.mps.mps_state import DaemonState, read_state
from slurm_colloc.host.mps.start_daemon import RunningMps
from slurm_colloc.host.mps.stop_daemon import find_use, stop_daemon
from slurm_colloc.host.system.node_processes import (
    ProcessId,
    is_alive,
    read_boot_id,
    read_pid_namespace,
)
from slurm_colloc.host.system.own_directory import (
    BASES,
    PrivateDirectory,
    is_half_made,
    list_private_directories,
    open_private_directory,
)
from slurm_colloc.host.system.remove_directory import remove_directory

_LOCK_POLL_S = 0.01


@dataclass(frozen=True)
class Swept:
    """What was found of an earlier pack.

    Args:
        path: Its directory.
        label: Whose it was.
        report: How it was ended; None where it was left alone.
        reason: Why it was left alone.
    """

    path: str
    label: str
    report: StopReport | None
    reason: str = ""


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
    """Take over a daemon that another process has started."""
    environment = build_daemon_environment(
        state.programs,
        gpus=state.gpus,
        pipe_directory=directory.pipe_path,
        log_directory=directory.log_path,
        added=state.added,
    )
    # A daemon that is not written down yet is found by its environment.
    daemon = state.daemon or ProcessId(-1, -1)
    return RunningMps(
        options=MpsOptions(gpus=state.gpus, label=state.label, logs_to=logs_to),
        directory=directory,
        state=replace(state, daemon=daemon),
        daemon=daemon,
        child=None,
        control=ControlProgram(state.programs, environment, state.owner),
        logs=LogFollower(
            directory.descriptor, os.geteuid() if state.owner is None else state.owner.uid
        ),
        control_ms=0.0,
    )


def sweep(bases: Sequence[str] = BASES) -> tuple[Swept, ...]:
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
                swept.append(Swept(path, "", report))
            continue
        swept.append(_sweep_one(directory))
    return tuple(swept)


def _sweep_one(directory: PrivateDirectory) -> Swept:
    path = directory.path
    try:
        state = read_state(directory.descriptor)
    except StateError as error:
        directory.close()
        return Swept(path, "", None, str(error))
    if state is None:
        return Swept(path, "", _end_left(directory, None, 0.0, None))
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
        return Swept(path, state.label, None, reason)
    return Swept(path, state.label, _end_left(directory, state, 0.0, None))
