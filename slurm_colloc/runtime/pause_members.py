"""Pausing members, and what a pause is for them: no time at all.

Also: packs and programs that are not paused: by settings, and as far as their processes show it;
the processes of members that a pause stops, and how they are stopped and continued.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_colloc.host.system.node_processes import (
    Process,
    ProcessId,
    identify,
    list_running_processes,
    read_command_line,
    read_named_start,
    read_process,
)
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.programs.pause_lease import GOES_ON, LEASE_S, PAUSED, RENEW_S
from slurm_colloc.settings import Settings
from slurm_colloc.store.member_states import MEASURED, PARKED, append_change
from slurm_colloc.store.progress_counters import find_shared_loaders

# ----
# Packs and programs that are not paused: by settings, and as far as their processes show it.
#
# A program whose processes watch each other by short heartbeats takes a long pause for the death of
# its partners, although all of them are paused together: its own watchers, and servers outside, go
# on counting. Such a member is paused for no longer than a measurement, or not at all.

NEVER = frozenset(
    {
        # Ray: raylet and gcs_server report to each other every few seconds.
        "raylet", "gcs_server",
        # MPI launchers and their daemons (Open MPI, PRRTE, Hydra of MPICH).
        "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "hydra_pmi_proxy",
        # Schedulers of Dask and Spark are outside the member, and drop workers that are silent.
        "dask-worker", "dask",
    }
)  # fmt: skip
"""Names of programs (proc(5), comm: 15 characters at most)."""

SINGLETON = "--singleton-died-pipe"
"""With that option Open MPI starts its daemon below a program that was not started by mpirun (4.1,
ess_singleton_module.c): as Lightning does where mpi4py is installed. It has no partners."""

_NEVER_SHORT = frozenset(name[:15] for name in NEVER)


def find_pause_obstacle(processes: Iterable[Process]) -> str:
    """Why a member is never paused, by its processes; empty where it may be."""
    for process in processes:
        if process.name in _NEVER_SHORT and not _serves_one(process):
            return f"{process.name} watches its partners by short heartbeats"
    return ""


def _serves_one(process: Process) -> bool:
    """Whether it is the daemon that Open MPI starts below a program without ranks."""
    return process.name == "orted" and SINGLETON in read_command_line(process.id.pid)


def find_parking_obstacle(processes: int, ranks: int | None) -> str:
    """Why a member is paused for moments only, and never parked; empty where it may be.

    Args:
        processes: Those of its processes that have made steps.
        ranks: How many ranks it says that it has (WORLD_SIZE); None where it has none.
    """
    if (ranks or 1) > 1 or processes > 1:
        return "its ranks wait for each other with a time-out"
    return ""


def find_measuring_obstacle(settings: Settings, unwatched: str) -> str:
    """Why a pack is not measured by pausing its members; empty where it is.

    Args:
        settings: The settings of this node.
        unwatched: Why nothing of it is watched; empty where it is.
    """
    return unwatched if settings.pause else "the setting pause is off"


# ---- The processes of members that a pause stops, and how they are stopped and continued ---------
#
# All that a member has started is below its wrapper, which adopts orphans; but for the tasks of an
# srun in its script, which name the member in the environment that they were started with. Not
# stopped are the wrapper, what stands for Slurm's commands (the shims), srun and slurmstepd: they
# answer Slurm in the member's place.

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
        # The second is the name that it gives itself.
        if process.name.startswith(("python", "csub-command")):
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


# ---- Pausing members, and what a pause is for them: no time at all -------------------------------

LOOK_S = 1.0
"""How often it is looked whether paused members still are."""


@dataclass(eq=False, kw_only=True)
class MemberPauser:
    """Stops the processes of members, and lets them go on.

    Attributes:
        pack: The attempt of the pack.
        find_progress: Where a member counts its steps; empty where it does not.
        on_resume: Told of each member that goes on, or is to.
    """

    pack: PackContext
    find_progress: Callable[[Member], str] = lambda _member: ""
    on_resume: Callable[[Member], None] = lambda _member: None

    def __post_init__(self) -> None:
        self._processes = StepProcesses(str(self.pack.path))
        self._stopped: dict[int, StoppedMember] = {}
        self._obstacles: dict[int, str] = {}
        self._looked_at = 0.0

    def find_obstacles(self, members: Iterable[Member]) -> dict[int, str]:
        """Why members are never to be paused, by number; those are missing that may be."""
        wanted = list(members)
        found = self._processes.find(list_wrappers_of(wanted))
        directories = {member.number: self.find_progress(member) for member in wanted}
        # Who makes the batches of others would be missed by them, and who is without them has
        # another rate.
        sharing = find_shared_loaders(directories.values())

        def find(member: Member) -> str:
            if not member.spec.job.pause:
                return "--no-pause"
            if directories[member.number] in sharing:
                return "it shares its loader"
            return find_pause_obstacle(found.get(member.number, ()))

        obstacles = {member.number: find(member) for member in wanted}
        for number, obstacle in obstacles.items():
            if obstacle and self._obstacles.get(number) != obstacle:
                self.pack.journal.write("not_paused", member=number, reason=obstacle)
            self._obstacles[number] = obstacle
        return {number: obstacle for number, obstacle in obstacles.items() if obstacle}

    def get_obstacle(self, number: int) -> str:
        """Why a member is never paused, as last found; empty where it may be."""
        return self._obstacles.get(number, "")

    def pause(self, members: Iterable[Member], reason: str = MEASURED) -> None:
        """Stop all processes of members; those that are paused stay so.

        Args:
            members: Running members.
            reason: `measured` or `parked`.
        """
        wanted = list(members)
        new = [
            m
            for m in wanted
            # One that is being ended has its time to save what it has.
            if m.paused_at is None and m.wrapper_pid is not None and m.end_by is None
        ]
        if reason != MEASURED and (others := [m for m in wanted if m.paused_at is not None]):
            # They stay, for another reason.
            self._write(paused=others, resumed=others, reason=reason)
        if not new:
            return
        # Written first: what lies in between is a pause by what is read later.
        self._write(paused=new, reason=reason)
        now = self.pack.clock()
        for member in new:
            self._begin(member)
            member.paused_at = now
        self._processes.stop(list_wrappers_of(new), self._stopped)
        for member in new:
            if not self._stopped[member.number].is_whole:
                self.pack.journal.write("not_wholly_paused", member=member.number)

    def resume(self, members: Iterable[Member]) -> None:
        """Let members go on; the time of their pauses counts for none of their limits."""
        wanted = list(members)
        paused = [member for member in wanted if member.paused_at is not None]
        for member in paused:
            stopped = self._stopped.pop(member.number, None)
            if stopped is not None:
                stopped.resume()
        now = self.pack.clock()
        for member in paused:
            member.resume(now)
        if paused:
            self._write(resumed=paused)
        for member in wanted:
            self.on_resume(member)

    def forget(self, member: Member) -> None:
        """A member has ended, or is gone."""
        stopped = self._stopped.pop(member.number, None)
        if stopped is not None:
            # Its wrapper may have been killed, and what it has started be left.
            stopped.resume()
        if member.paused_at is not None:
            member.paused_at = None
            self._write(resumed=[member])

    def check(self, members: Iterable[Member]) -> None:
        """See whether paused members still are, and renew their pauses.

        Where all go on Slurm had suspended the job, and has resumed it: they are stopped again.
        Else a member may have been sent a signal, which is to be heard: it goes on. A process that
        has come since is stopped.
        """
        now = self.pack.clock()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        paused = [m for m in members if m.paused_at is not None and m.number in self._stopped]
        for member in paused:
            stopped = self._stopped[member.number]
            if now >= stopped.lasts_until:
                self._pause_again(member, stopped.lasts_until)
            elif now >= stopped.lasts_until - LEASE_S + RENEW_S:
                stopped.renew(now)
        let_go = [m for m in paused if any(map(_runs, self._stopped[m.number].processes))]
        if len(let_go) > 1 and let_go == paused:
            for member in let_go:
                self.pack.journal.write("paused_again", member=member.number)
                self._begin(member)
        elif let_go:
            for member in let_go:
                self.pack.journal.write("goes_on", member=member.number, reason="a signal")
            self.resume(let_go)
            paused = [m for m in paused if m not in let_go]
        if paused:
            self._processes.stop(list_wrappers_of(paused), self._stopped)

    def _begin(self, member: Member) -> None:
        """Tell its wrapper that it is paused, before it is."""
        wrapper = None if member.wrapper_pid is None else identify(member.wrapper_pid)
        stopped = self._stopped[member.number] = StoppedMember(wrapper=wrapper)
        stopped.renew(self.pack.clock())

    def _pause_again(self, member: Member, lapsed_at: float) -> None:
        """This process hung, and the member has gone on meanwhile: that was no pause."""
        now = self.pack.clock()
        self._write(resumed=[member], at=time.time() - (now - lapsed_at))
        self._write(paused=[member], reason=PARKED if member.is_parked else MEASURED)
        member.resume(lapsed_at, paused_again_at=now)
        self._begin(member)
        self._processes.stop(list_wrappers_of([member]), self._stopped)
        self.pack.journal.write("paused_again", member=member.number, reason="the runner hung")

    def continue_left(self) -> None:
        """Let go on what an earlier attempt on this node has left stopped."""
        if count := continue_stopped(str(self.pack.path)):
            self.pack.journal.write("continued", processes=count)

    def _write(
        self,
        *,
        paused: Iterable[Member] = (),
        resumed: Iterable[Member] = (),
        reason: str = MEASURED,
        at: float | None = None,
    ) -> None:
        try:
            append_change(
                self.pack.path,
                time.time() if at is None else at,
                paused=[(m.number, m.record.starts) for m in paused],
                resumed=[(m.number, m.record.starts) for m in resumed],
                reason=reason,
            )
        except OSError as error:
            # A report will count it as time of its own; no member is kept waiting for that.
            self.pack.journal.write("pause_not_written", reason=str(error))


def list_wrappers_of(members: Iterable[Member]) -> dict[int, int]:
    """The wrappers' process ids, by member; those that have none yet are left out."""
    return {m.number: m.wrapper_pid for m in members if m.wrapper_pid is not None}


def _runs(process: ProcessId) -> bool:
    found = read_process(process.pid)
    return found is not None and found.id == process and found.state not in "TtZX"
