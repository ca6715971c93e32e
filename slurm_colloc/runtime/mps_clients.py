"""Which members are clients of the pack's MPS server, and what has hit them there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.settled_mode import GpuPatience

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.keeper_messages import Fault, Status

LOOK_INTERVAL_S = 2.0
"""How often the daemon is asked for its clients at most, while a member is not known to be one."""

LOOK_FOR_S = 600.0
"""How long a member is looked for: a program that loads data for longer is found by the log."""

_LOOK_SHARE = 0.2

_DAEMON_LOOK_FOR_S = 60.0
"""How long a member's own daemon is looked for, after the pack's was ended."""

_DAEMON_SLACK_S = 1.0
"""It may have started so long before the end of the pack's daemon was heard of."""

_DAEMON_NAME = "nvidia-cuda-mps"
"""A daemon's name and its server's, as the kernel shortens them."""


@dataclass
class MpsMember:
    """A member as the MPS server sees it.

    Attributes:
        wrapper_pid: The process below which all of its processes run.
        since: When it started (monotonic clock).
        is_client: One of its processes is, or was, a client.
        contexts: Those that are clients now.
        is_outside: One of its processes uses the GPU without MPS.
        looks: For how many of its `GpuPatience.gpu_looks_s` NVML has been asked.
        suspects: Members that a fault hit together with it; empty for no fault.
        fault: What the server said of that fault.
        is_hit: One of its own processes is among those that this fault has hit.
        lost: Why the server went while it ran; empty where it did not.
        broken: Why the server went while a process of it was a client; empty where it did not.
        own_daemon: An MPS daemon of its own that has started since; empty for none.
    """

    wrapper_pid: int
    since: float
    is_client: bool = False
    contexts: set[int] = field(default_factory=set)
    is_outside: bool = False
    looks: int = 0
    suspects: tuple[int, ...] = ()
    fault: str = ""
    is_hit: bool = False
    lost: str = ""
    broken: str = ""
    own_daemon: str = ""


class MpsClients:
    """Follows the members that run under MPS.

    Args:
        pack: The pack's directory, as in its members' environment.
        journal: The pack's log.
        patience: When NVML is asked.
    """

    def __init__(self, pack: Path, journal: Journal, patience: GpuPatience | None = None) -> None:
        self._pack = os.fsencode(pack)
        self._journal = journal
        self._patience = patience or GpuPatience()
        self._members: dict[int, MpsMember] = {}
        self._owners: dict[int, int] = {}
        self._hit_pids: set[int] = set()
        self._asked_at = 0.0
        self._looked_at = 0.0
        self._ended_at: float | None = None
        self._daemon_looked_at = 0.0
        self.statuses = 0
        """How many answers to `ask_status` have come."""
        self.news: dict[int, bool] = {}
        """Members of which it has become known that they are clients, or are none and use the GPU
        all the same, and were not told of yet."""

    def watch(self, member: Member) -> None:
        """A member has started under MPS."""
        assert member.wrapper_pid is not None
        self._members[member.number] = MpsMember(member.wrapper_pid, time.monotonic())

    def forget(self, number: int) -> None:
        """A member has ended."""
        self._members.pop(number, None)
        self.news.pop(number, None)

    def get(self, number: int) -> MpsMember | None:
        """What is known of a member that runs under MPS; None for any other."""
        return self._members.get(number)

    # -- clients ------------------------------------------------------------------------------

    def wants_status(self) -> bool:
        """The daemon should be asked now which its clients are."""
        if not self.is_status_due(self._asked_at, self._members):
            return False
        self._asked_at = time.monotonic()
        return True

    def is_status_due(self, asked_at: float, numbers: Collection[int]) -> bool:
        """Whether it should be asked for some members, where it was last asked at a time."""
        now = time.monotonic()
        ages = [
            now - seen.since
            for number, seen in self._members.items()
            if number in numbers
            and not (seen.is_client or seen.is_outside)
            and now < seen.since + LOOK_FOR_S
        ]
        # Each question starts some programs: one without a GPU for a minute is rarely asked for.
        return bool(ages) and now >= asked_at + max(LOOK_INTERVAL_S, _LOOK_SHARE * min(ages))

    def join(self, pid: int) -> None:
        """A process has become a client."""
        owner = self._find_owner(pid)
        if owner is None:
            return
        self._owners[pid] = owner
        seen = self._members.get(owner)
        if seen is not None and pid not in self._hit_pids:
            # It has got a new context: what came before has not ended this member.
            seen.suspects, seen.fault, seen.is_hit, seen.lost = (), "", False, ""
            seen.contexts.add(pid)
        self._confirm(owner)

    def leave(self, pid: int) -> None:
        """A process is no client any more, by its own doing."""
        seen = self._members.get(self._owners.get(pid, -1))
        if seen is not None:
            seen.contexts.discard(pid)

    def _find_owner(self, pid: int) -> int | None:
        # Loaded only by packs that have MPS.
        from slurm_colloc.host.system.node_processes import find_ancestor, read_named_start

        wrappers = {seen.wrapper_pid: number for number, seen in self._members.items()}
        owner = find_ancestor(pid, wrappers)
        named = read_named_start(pid, self._pack) if owner is None else None
        return named[0] if named is not None and named[0] in self._members else owner

    def _confirm(self, number: int) -> None:
        seen = self._members.get(number)
        if seen is not None and not seen.is_client:
            seen.is_client, seen.is_outside = True, False
            self.news[number] = True

    def note_status(self, status: Status) -> None:
        """The daemon's list of clients."""
        self.statuses += 1
        for server in status.servers:
            for client in server.clients:
                owner = self._owners.get(client.pid)
                if owner is not None and owner in self._members:
                    self._confirm(owner)
                else:
                    self.join(client.pid)

    # -- without MPS -------------------------------------------------------------------------

    def wants_gpu_look(self) -> bool:
        """NVML should be asked now what uses the GPU without being a client."""
        now = time.monotonic()
        if now < self._looked_at + self._patience.gpu_look_every_s:
            return False
        looks_s = self._patience.gpu_looks_s
        is_due = False
        for seen in self._members.values():
            if seen.is_client or seen.is_outside:
                continue
            while seen.looks < len(looks_s) and now >= seen.since + looks_s[seen.looks]:
                seen.looks += 1
                is_due = True
        if is_due:
            self._looked_at = now
        return is_due

    def note_outside(self, pids: Iterable[int]) -> None:
        """Processes that use the GPU and are no clients of any MPS server."""
        for pid in pids:
            owner = None if pid in self._owners else self._find_owner(pid)
            seen = None if owner is None else self._members.get(owner)
            if owner is not None and seen is not None and not seen.is_client:
                if not seen.is_outside:
                    self._journal.write("mps_outside", member=owner, pid=pid)
                seen.is_outside = True
                self.news[owner] = False

    # -- faults -------------------------------------------------------------------------------

    def note_fault(self, fault: Fault, within: Collection[int] | None = None) -> None:
        """A fault has hit all clients of a device.

        Args:
            fault: What the server says.
            within: The members whose server that is; None for all.
        """
        self._hit_pids.update(fault.suspects)
        owners = {self._owners.get(pid) for pid in fault.suspects}
        numbers = {number for number in owners if number is not None}
        if None in owners or not numbers:
            # A client whose member is not found any more may be any member's: with one of them
            # left out, another would be taken for the only one.
            numbers.update(self._members if within is None else within)
        text = next((line.strip() for line in fault.text.splitlines() if line.strip()), "")
        suspects = tuple(sorted(numbers))
        self._journal.write("mps_fault", members=suspects, pids=fault.suspects, text=text)
        for number in suspects:
            seen = self._members.get(number)
            if seen is not None:
                seen.suspects, seen.fault, seen.is_hit = suspects, text, number in owners

    def list_hit(self) -> list[int]:
        """Clients that a fault has hit and that have not ended."""
        return [n for n, seen in self._members.items() if seen.suspects and seen.is_client]

    def lose(self, reason: str, within: Collection[int] | None = None) -> None:
        """A server is gone, and with it the contexts of all clients.

        Args:
            reason: Why.
            within: The members whose server that is; None for all.
        """
        for number, seen in self._members.items():
            if within is None or number in within:
                # One that had no context yet may have been about to get one.
                seen.lost = reason
                if seen.contexts:
                    seen.broken = seen.broken or reason
                    self._hit_pids |= seen.contexts
                    seen.contexts.clear()
        self._owners = {
            pid: owner
            for pid, owner in self._owners.items()
            if within is not None and owner not in within
        }
        self._ended_at = time.clock_gettime(time.CLOCK_BOOTTIME)

    # -- what ended it ------------------------------------------------------------------------

    def look_for_own_daemons(self) -> None:
        """See which member has an MPS daemon of its own that began after the pack's was ended.

        Only the process that a signal ends is told who has sent it. One that ends the daemons of
        its user so that it can start its own shows it by that one: an older one would be gone.
        """
        now = time.monotonic()
        if self._ended_at is None or now < self._daemon_looked_at + LOOK_INTERVAL_S:
            return
        from slurm_colloc.host.system.node_processes import find_ancestor, list_running_processes

        self._daemon_looked_at = now
        since = (self._ended_at - _DAEMON_SLACK_S) * os.sysconf("SC_CLK_TCK")
        wrappers = {seen.wrapper_pid: number for number, seen in self._members.items()}
        for process in list_running_processes():
            if process.name != _DAEMON_NAME or process.id.start_ticks < since:
                continue
            # What its environment says is not believed.
            pid = process.id.pid
            number = find_ancestor(pid, wrappers)
            if number is not None and not self._members[number].own_daemon:
                self._journal.write("mps_own_daemon", member=number, pid=pid)
                self._members[number].own_daemon = (
                    "it started an MPS daemon of its own after the pack's was ended "
                    f"(process {pid})"
                )
        if time.clock_gettime(time.CLOCK_BOOTTIME) > self._ended_at + _DAEMON_LOOK_FOR_S:
            self._ended_at = None


class InstanceClients:
    """The same as the daemon of one MIG instance has it: of the members on that alone.

    Args:
        clients: All members of the pack.
        find_members: Those on the instance.
    """

    def __init__(self, clients: MpsClients, find_members: Callable[[], Collection[int]]) -> None:
        self._clients = clients
        self._find_members = find_members
        self._asked_at = 0.0
        self.statuses = 0
        """How many answers to `ask_status` have come from this daemon."""

    def join(self, pid: int) -> None:
        """A process has become a client."""
        self._clients.join(pid)

    def leave(self, pid: int) -> None:
        """A process is no client any more."""
        self._clients.leave(pid)

    def wants_status(self) -> bool:
        """The daemon should be asked now which its clients are."""
        if not self._clients.is_status_due(self._asked_at, self._find_members()):
            return False
        self._asked_at = time.monotonic()
        return True

    def note_status(self, status: Status) -> None:
        """The daemon's list of clients."""
        self.statuses += 1
        self._clients.note_status(status)

    def note_fault(self, fault: Fault) -> None:
        """A fault has hit all clients of the instance."""
        self._clients.note_fault(fault, self._find_members())

    def list_hit(self) -> list[int]:
        """Clients that a fault has hit and that have not ended."""
        mine = self._find_members()
        return [number for number in self._clients.list_hit() if number in mine]

    def lose(self, reason: str) -> None:
        """The server is gone, and with it the contexts of its clients."""
        self._clients.lose(reason, self._find_members())
