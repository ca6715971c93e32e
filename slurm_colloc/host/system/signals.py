"""The only place in `host` that sends signals; who: root's hooks, and the user's own programs.

Also: ending a group of processes for good, within a budget; no process is asked anything.

A signal needs an owner and a group, both by the kernel's word: the uid in /proc/PID/status, and a
membership that a process cannot give itself. The process is identified first (pidfd and start
time); uid and group are read after that, and all three again directly before the signal. Pid 1,
uid 0, other users' processes and this process itself are refused. What was sent is kept for the
audit line.

No other module of `host` may call `os.kill`, `os.killpg`, `signal.pidfd_send_signal` or a method
such as `Popen.kill`: ruff and tests/architecture hold that.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    identify,
    open_process,
    read_process,
    read_uids,
    wait_until_ended,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.system.node_processes import ControlGroup


if TYPE_CHECKING:
    from typing import Protocol

    class ProcessGroup(Protocol):
        """Processes that belong together by the kernel's word."""

        def list_members(self) -> list[ProcessId]:
            """Those that have not ended."""
            ...

        def contains(self, process: Process) -> bool:
            """Whether a process belongs to it now."""
            ...


KILL = int(signal.SIGKILL)
TERMINATE = int(signal.SIGTERM)
INTERRUPT = int(signal.SIGINT)
CONTINUE = int(signal.SIGCONT)

SENT = "sent"
GONE = "gone"
"""It has ended, or its pid is another process's by now."""

_MOST_KEPT = 32
# The same on every Linux architecture since 5.1 (arch/*/entry/syscalls); for a Python that was
# built against older headers.
_SYS_PIDFD_SEND_SIGNAL = 424


@dataclass(frozen=True)
class SentSignal:
    """One signal, for the audit line.

    Args:
        pid: To which process.
        uid: Whose it was.
        name: What it called itself: the user's text, to be written down only.
        number: The signal.
        reason: Why.
    """

    pid: int
    uid: int
    name: str
    number: int
    reason: str


class SignalRecord:
    """What this process has sent and refused to send; bounded, for the audit line."""

    def __init__(self) -> None:
        self.sent: list[SentSignal] = []
        self.refused: list[str] = []
        self.count = 0
        self.is_hook = False

    def add(self, entry: SentSignal) -> None:
        """Remember a signal."""
        self.count += 1
        if len(self.sent) < _MOST_KEPT:
            self.sent.append(entry)

    def refuse(self, text: str) -> str:
        """Remember what was not done, and why."""
        if len(self.refused) < _MOST_KEPT and text not in self.refused:
            self.refused.append(text)
        return text

    def describe(self) -> dict[str, object]:
        """For the audit line; empty where there was nothing."""
        told: dict[str, object] = {}
        if self.sent:
            told["signals"] = [vars(entry) for entry in self.sent]
        if self.count > len(self.sent):
            told["signals_in_all"] = self.count
        if self.refused:
            told["signals_refused"] = list(self.refused)
        return told


RECORD = SignalRecord()


def act_as_hook() -> None:
    """From now on this process is root's hook: it signals nothing of its own user's, root's."""
    RECORD.is_hook = True


def send_signal(
    pid: int, number: int, *, owner: int | None, group: ProcessGroup, reason: str
) -> str:
    """Signal one process, if the kernel says that it is the owner's and in the group.

    Args:
        pid: Its pid; proves nothing by itself.
        number: The signal.
        owner: The uid that all of its user ids have to be. None: this process's own user, for a
            program that is no hook.
        group: What it has to belong to.
        reason: Why, for the audit line.

    Returns:
        SENT, GONE, or why it was refused.
    """
    problem = _judge_request(pid, owner)
    if problem:
        return RECORD.refuse(problem)
    expected = os.geteuid() if owner is None else owner
    identity = identify(pid)
    descriptor = None if identity is None else open_process(identity)
    if identity is None or descriptor is None:
        return GONE
    try:
        # The first look may cost time; the second one stands directly before the signal.
        for _ in range(2):
            process = read_process(pid)
            if process is None or process.id != identity or process.has_ended:
                return GONE
            problem = _judge_process(process, expected, group)
            if problem:
                return problem if problem == GONE else RECORD.refuse(problem)
            entry = SentSignal(pid, expected, process.name, number, reason)
        _send(descriptor, pid, number)
    except ProcessLookupError:
        return GONE
    except OSError as error:
        return RECORD.refuse(f"process {pid}: {error.strerror}")
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    RECORD.add(entry)
    return SENT


def _judge_request(pid: int, owner: int | None) -> str:
    if pid <= 1 or pid == os.getpid():
        return f"process {pid} is never signalled"
    if owner is None and RECORD.is_hook:
        return "a hook has no processes of its own to signal"
    if owner is not None and owner <= 0:
        return f"user {owner} owns nothing that may be signalled"
    return ""


def _judge_process(process: Process, owner: int, group: ProcessGroup) -> str:
    """Why a process must not be signalled; empty where it may."""
    uids = read_uids(process.id.pid)
    if uids is None:
        return GONE
    if set(uids) != {owner}:
        return f"process {process.id.pid} is user {uids[0]}'s (effective {uids[1]}), not {owner}'s"
    if not group.contains(process):
        return f"process {process.id.pid} is not in the group"
    return ""


def end_child(pid: int) -> None:
    """Kill a child of this process that was not collected yet; whose it is does not matter.

    Args:
        pid: Its pid. The kernel gives it to no other process before the child is collected.
    """
    process = read_process(pid)
    if pid <= 1 or process is None or process.has_ended or process.parent_pid != os.getpid():
        return
    descriptor = open_process(process.id)
    if descriptor is None:
        return
    try:
        _send(descriptor, pid, KILL)
    except OSError:
        return
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def note_group_kill(members: Iterable[ProcessId], owner: int, reason: str) -> None:
    """Remember what the kernel was asked to kill as a whole (cgroup.kill).

    Args:
        members: What was in the group just before.
        owner: Whose group it was.
        reason: Why.
    """
    for identity in members:
        process = read_process(identity.pid)
        uids = read_uids(identity.pid)
        name = "" if process is None or process.id != identity else process.name
        RECORD.add(SentSignal(identity.pid, uids[0] if uids else owner, name, KILL, reason))


def _send(descriptor: int, pid: int, number: int) -> None:
    """Through the pidfd; by pid only where the kernel has no pidfds (before 5.3)."""
    if descriptor < 0:
        os.kill(pid, number)  # noqa: TID251 - the one place
    elif hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(descriptor, number)  # noqa: TID251 - the one place
    else:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(_SYS_PIDFD_SEND_SIGNAL, descriptor, number, None, 0) < 0:
            cause = ctypes.get_errno()
            if cause == errno.ESRCH:
                raise ProcessLookupError
            raise OSError(cause, os.strerror(cause))


# ---- Ending a group of processes for good, within a budget; no process is asked anything ---------

LOOK_S = 1.0
"""How long a process that was sent KILL may take, and how long after that it is looked at again.

A daemon and its server with 48 clients took at most 0.13 s on an H100 (docs/benchmarks.md). Clients
took up to 4.2 s: they are in the job's own control group, and Slurm ends them.
"""

_ROUND_S = 0.05


@dataclass(frozen=True)
class GroupEnd:
    """How a group has ended.

    Args:
        unkillable: Members that KILL was sent to, and that two looks LOOK_S apart still found.
        left: Members that are still there without that proof, or that are not the owner's.
    """

    unkillable: tuple[Process, ...] = ()
    left: tuple[Process, ...] = ()


def kill_group(group: ControlGroup, owner: int, *, reason: str, deadline: float) -> GroupEnd:
    """Kill all members of a group that are its owner's, and see that they are gone.

    Args:
        group: The group.
        owner: Whose its members have to be.
        reason: Why, for the audit line.
        deadline: Until when, on the monotonic clock. Two looks LOOK_S apart take 2 * LOOK_S.
    """
    members = group.list_members()
    if not members:
        return GroupEnd()
    group.forbid_forks()
    sent = set(group.kill_whole())
    note_group_kill(sent, owner, reason)
    first_look = min(deadline, time.monotonic() + LOOK_S)
    while members and time.monotonic() < first_look:
        group.freeze()
        try:
            # Frozen, none can fork after it was listed.
            members = group.list_members()
            for member in members:
                if send_signal(member.pid, KILL, owner=owner, group=group, reason=reason) == SENT:
                    sent.add(member)
        finally:
            group.thaw()
        # A wait for one that stays would keep the others waiting, and what they fork meanwhile.
        wait_until_ended(members, min(first_look, time.monotonic() + _ROUND_S))
        members = group.list_members()
    seen = sent & set(members)
    if not members:
        return GroupEnd()
    is_second_look = time.monotonic() + LOOK_S <= deadline
    wait_until_ended(members, min(deadline, time.monotonic() + LOOK_S))
    members = group.list_members()
    unkillable = seen & set(members) if is_second_look else set()
    return GroupEnd(
        unkillable=_read_all(sorted(unkillable)),
        left=_read_all(sorted(set(members) - unkillable)),
    )


def end_members(
    group: ProcessGroup, steps: Sequence[tuple[int, float]], *, owner: int | None, reason: str
) -> tuple[Process, ...]:
    """End a group's members, one signal after the other.

    Args:
        group: The group; asked anew for each signal, because a process may have forked meanwhile.
        steps: Signals, each with the seconds until the next.
        owner: Whose its members have to be; None for this process's own user.
        reason: Why.

    Returns:
        Those that are left.
    """
    for number, patience_s in steps:
        members = group.list_members()
        if not members:
            return ()
        for member in members:
            send_signal(member.pid, number, owner=owner, group=group, reason=reason)
            if number != KILL:
                # A stopped process would keep the signal until it goes on.
                send_signal(member.pid, CONTINUE, owner=owner, group=group, reason=reason)
        wait_until_ended(members, time.monotonic() + patience_s)
    return _read_all(group.list_members())


def _read_all(identities: Sequence[ProcessId]) -> tuple[Process, ...]:
    found = (read_process(identity.pid) for identity in identities)
    return tuple(
        process
        for process, identity in zip(found, identities, strict=True)
        if process is not None and process.id == identity and not process.has_ended
    )
