"""The processes of members that a pause stops, and how they are stopped and continued.

All that a member has started is below its wrapper, which adopts orphans; but for the tasks of an
srun in its script, which name the member in the environment that they were started with. Not
stopped are the wrapper, what stands for Slurm's commands (the shims), srun and slurmstepd: they
answer Slurm in the member's place.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    identify,
    list_running_processes,
    read_command_line,
)
from slurm_colloc.host.system.process_owner import read_named_start
from slurm_colloc.runtime.programs.pause_lease import GOES_ON, LEASE_S, PAUSED

ROUNDS_MOST = 20
"""How often it is looked for new processes: who forks faster than that is never wholly stopped."""

_SLURMS = frozenset({"srun", "slurmstepd"})
_STOPPED = "Tt"
_SHIM = "/programs/shim.py"
_TICKS = os.sysconf("SC_CLK_TCK")
_YOUNG_S = 2.0
"""A process of that age may still be about to become another program."""


@dataclass
class StoppedMember:
    """What was stopped of one member.

    Attributes:
        processes: In the order in which they were stopped: parents first.
        is_whole: A last look found none that still ran.
        wrapper: Its wrapper, which lets them go on if the pause is not renewed.
        lasts_until: When it does so (monotonic clock of who pauses).
    """

    processes: list[ProcessId] = field(default_factory=list)
    is_whole: bool = False
    wrapper: ProcessId | None = None
    lasts_until: float = math.inf

    def renew(self, now: float) -> None:
        """Let the pause last for longer."""
        self.lasts_until = now + LEASE_S
        if self.wrapper is not None:
            send(self.wrapper, PAUSED)

    def resume(self) -> None:
        """Let its processes go on."""
        resume(self.processes)
        if self.wrapper is not None:
            send(self.wrapper, GOES_ON)


class StepProcesses:
    """Finds, stops and continues the processes of a pack's members.

    Args:
        pack: The pack's directory, as in its members' environment.
    """

    def __init__(self, pack: str) -> None:
        self._pack = os.fsencode(pack)
        self._shims: set[ProcessId] = set()
        self._foreign: set[ProcessId] = set()

    def stop(
        self, wrappers: Mapping[int, int], stopped: dict[int, StoppedMember] | None = None
    ) -> dict[int, StoppedMember]:
        """Stop all processes of some members, again until no new one is found.

        What a user has stopped before is left alone, and does not go on either.

        Args:
            wrappers: Process ids of the members' wrappers, by member number.
            stopped: What is stopped of them already; it is added to as each process is stopped, so
                that all of it is known whatever fails.
        """
        stopped = {} if stopped is None else stopped
        for number in wrappers:
            stopped.setdefault(number, StoppedMember())
        for _ in range(ROUNDS_MOST):
            found = self.find(wrappers)
            new = 0
            for number, processes in found.items():
                known = set(stopped[number].processes)
                for process in processes:
                    if process.id not in known and process.state not in _STOPPED:
                        new += 1
                        if send(process.id, signal.SIGSTOP):
                            stopped[number].processes.append(process.id)
            if not new:
                for number in wrappers:
                    stopped[number].is_whole = True
                break
        return stopped

    def find(self, wrappers: Mapping[int, int]) -> dict[int, list[Process]]:
        """The processes of members as they are now, parents before their children."""
        table = list_running_processes()
        children: dict[int, list[Process]] = {}
        for process in table:
            children.setdefault(process.parent_pid, []).append(process)
        found: dict[int, list[Process]] = {}
        owned: set[ProcessId] = set()
        for number, wrapper_pid in wrappers.items():
            below = _list_below(wrapper_pid, children)
            owned.update(process.id for process in below)
            found[number] = [process for process in below if not self._is_exempt(process)]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        for process in table:
            if process.id in owned or process.id in self._foreign:
                continue
            named = read_named_start(process.id.pid, self._pack)
            if named is None:
                if now - process.id.start_ticks / _TICKS > _YOUNG_S:
                    self._foreign.add(process.id)
            elif named[0] in found:
                tree = [process, *_list_below(process.id.pid, children)]
                found[named[0]] += [p for p in tree if p.id not in owned and not self._is_exempt(p)]
                owned.update(p.id for p in tree)
        present = {process.id for process in table}
        self._foreign &= present
        self._shims &= present
        return found

    def _is_exempt(self, process: Process) -> bool:
        if process.name in _SLURMS or process.id in self._shims:
            return True
        if process.name.startswith("python"):
            words = read_command_line(process.id.pid)
            if any(word.endswith(_SHIM) for word in words[1:4]):
                # It soon becomes the command that it stands for.
                self._shims.add(process.id)
                return True
        return False


def resume(processes: Sequence[ProcessId]) -> None:
    """Let processes go on, children first: a parent finds them running again."""
    for process in reversed(processes):
        # Not looked at first, for which there may be no descriptor left; it harms no other process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGCONT)  # noqa: TID251 - the user's own


def send(process: ProcessId, number: int) -> bool:
    """Send a signal to this very process; False where it is gone."""
    if identify(process.pid) != process:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, number)  # noqa: TID251 - the user's own
        return True
    return False


def _list_below(pid: int, children: Mapping[int, Sequence[Process]]) -> list[Process]:
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            found.append(child)
            waiting.append(child.id.pid)
    return found


def continue_member(pack: str, number: int, wrapper_pid: int) -> None:
    """Let all processes of one member go on.

    Args:
        pack: The pack's directory, as in the member's environment.
        number: The member.
        wrapper_pid: Its wrapper.
    """
    found = StepProcesses(pack).find({number: wrapper_pid})
    resume([process.id for process in found[number]])


def list_wrappers(pack: str) -> list[Process]:
    """The wrappers of a pack's members that are alive on this node."""
    # The srun that stands for one names the same file.
    return [
        process
        for process in list_running_processes()
        if process.name not in _SLURMS and _is_wrapper(process, pack)
    ]


def _is_wrapper(process: Process, pack: str) -> bool:
    launches = f"{pack}/members/"
    words = read_command_line(process.id.pid)
    return any(w.startswith(launches) and w.endswith(".launch") for w in words)


def continue_stopped(pack: str) -> int:
    """Let every process of a pack's members go on: the runner that has stopped it is gone.

    One that was sent a SIGSTOP a moment ago may not show it yet, so all of them are told.

    Args:
        pack: The pack's directory.

    Returns:
        How many were seen to be stopped.
    """
    table = list_running_processes()
    named = os.fsencode(pack)
    roots = [
        process
        for process in table
        if _is_wrapper(process, pack) or read_named_start(process.id.pid, named) is not None
    ]
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent_pid, []).append(process)
    found: dict[ProcessId, str] = {}
    for root in roots:
        for process in (root, *_list_below(root.id.pid, children)):
            found[process.id] = process.state
    resume(list(found))
    return sum(state in _STOPPED for state in found.values())
