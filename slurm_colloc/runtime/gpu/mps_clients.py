"""Which members are clients of the pack's MPS server, and what has hit them there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_colloc.runtime.gpu.gpu_patience import GpuPatience
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.members import Member

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.keeper_messages import Fault, Status

LOOK_INTERVAL_S = 2.0
"""How often the daemon is asked for its clients at most, while a member is not known to be one."""

LOOK_FOR_S = 600.0
"""How long a member is looked for: a program that loads data for longer is found by the log."""

_LOOK_SHARE = 0.2


@dataclass
class MpsMember:
    """A member as the MPS server sees it.

    Attributes:
        wrapper_pid: The process below which all of its processes run.
        since: When it started (monotonic clock).
        is_client: One of its processes is, or was, a client.
        is_outside: One of its processes uses the GPU without MPS.
        looks: For how many of its `GpuPatience.gpu_looks_s` NVML has been asked.
        suspects: Members that a fault hit together with it; empty for no fault.
        fault: What the server said of that fault.
        lost: Why the server went while it was a client; empty where it did not.
    """

    wrapper_pid: int
    since: float
    is_client: bool = False
    is_outside: bool = False
    looks: int = 0
    suspects: tuple[int, ...] = ()
    fault: str = ""
    lost: str = ""


class MpsClients:
    """Follows the members that run under MPS.

    Args:
        journal: The pack's log.
        waits: When NVML is asked.
    """

    def __init__(self, journal: Journal, waits: GpuPatience | None = None) -> None:
        self._journal = journal
        self._waits = waits or GpuPatience()
        self._members: dict[int, MpsMember] = {}
        self._owners: dict[int, int] = {}
        self._hit_pids: set[int] = set()
        self._asked_at = 0.0
        self._looked_at = 0.0
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
        """The daemon should be asked now who its clients are."""
        now = time.monotonic()
        ages = [
            now - seen.since
            for seen in self._members.values()
            if not (seen.is_client or seen.is_outside) and now < seen.since + LOOK_FOR_S
        ]
        # Each question starts some programs; who needs no GPU for a minute is not asked for often.
        if not ages or now < self._asked_at + max(LOOK_INTERVAL_S, _LOOK_SHARE * min(ages)):
            return False
        self._asked_at = now
        return True

    def join(self, pid: int) -> None:
        """A process has become a client."""
        owner = self._find_owner(pid)
        if owner is None:
            return
        self._owners[pid] = owner
        seen = self._members.get(owner)
        if seen is not None and pid not in self._hit_pids:
            # It has got a new context: what came before has not ended this member.
            seen.suspects, seen.fault, seen.lost = (), "", ""
        self._confirm(owner)

    def _find_owner(self, pid: int) -> int | None:
        return find_owner(pid, {seen.wrapper_pid: n for n, seen in self._members.items()})

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

    # -- who goes without ---------------------------------------------------------------------

    def wants_gpu_look(self) -> bool:
        """NVML should be asked now who uses the GPU without being a client."""
        now = time.monotonic()
        if now < self._looked_at + self._waits.gpu_look_every_s:
            return False
        looks_s = self._waits.gpu_looks_s
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

    def note_fault(self, fault: Fault) -> None:
        """A fault has hit all clients of a device."""
        self._hit_pids.update(fault.suspects)
        owners = {self._owners.get(pid) for pid in fault.suspects}
        numbers = {number for number in owners if number is not None}
        if None in owners or not numbers:
            # A client that nobody can be found for any more may be any member's: with one of them
            # left out, another would be taken for the only one.
            numbers.update(self._members)
        text = next((line.strip() for line in fault.text.splitlines() if line.strip()), "")
        suspects = tuple(sorted(numbers))
        self._journal.write("mps_fault", members=suspects, pids=fault.suspects, text=text)
        for number in suspects:
            seen = self._members.get(number)
            if seen is not None:
                seen.suspects, seen.fault = suspects, text

    def list_hit(self) -> list[int]:
        """Clients that a fault has hit and that have not ended."""
        return [n for n, seen in self._members.items() if seen.suspects and seen.is_client]

    def lose(self, reason: str) -> None:
        """The server is gone, and with it the contexts of all clients."""
        for seen in self._members.values():
            # Who had no context yet may have been about to get one.
            seen.lost = reason
        self._owners.clear()


_DEPTH_MAX = 64


def read_parent(pid: int) -> int | None:
    """A process's parent, None where it is gone (proc(5), /proc/PID/stat, field 4)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def find_owner(pid: int, wrappers: Mapping[int, int]) -> int | None:
    """The member to which a process belongs; None where it belongs to none, or is gone.

    A wrapper adopts its orphans, so all of a member's processes stay below it; those of an srun
    inside the member's script are steps of their own, and are found by their environment.

    Args:
        pid: The process.
        wrappers: Member numbers by the process id of their wrappers.
    """
    current: int | None = pid
    for _ in range(_DEPTH_MAX):
        if current is None or current <= 1:
            break
        if current in wrappers:
            return wrappers[current]
        current = read_parent(current)
    return _read_member_variable(pid, set(wrappers.values()))


def _read_member_variable(pid: int, numbers: set[int]) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            block = file.read()
    except OSError:
        return None
    for pair in block.split(b"\0"):
        name, _, value = pair.partition(b"=")
        if name == b"SLURM_COLLOC_MEMBER":
            number = value.rpartition(b"/")[2]
            if number.isdigit() and int(number) in numbers:
                return int(number)
    return None
