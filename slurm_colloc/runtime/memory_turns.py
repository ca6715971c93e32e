"""Members take turns on a GPU whose memory does not hold all of them (`--take-turns`).

Where a member's GPU memory is, as a state machine without effects; how long a turn is; who makes
the driver's calls (programs/move_memory.py); whose turn ends, and who goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from slurm_colloc.host.system.child_programs import PIPE, Child, start_program
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import Stage
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.arrange import EndTurn, Return, TurnFacts, View, arrange_turns
from slurm_colloc.runtime.allocation import read_host_memory_mb
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_progress import ProgressReader, WindowRates
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pause_members import (
    MemberPauser,
    StepProcesses,
    find_parking_obstacle,
    list_wrappers_of,
)
from slurm_colloc.runtime.room import GpuMemoryRoom
from slurm_colloc.store.member_states import PARKED
from slurm_colloc.store.runner_requests import MovedMemory

if TYPE_CHECKING:
    from slurm_colloc.runtime.look import PackLook

# ---- Where a member's GPU memory is; pure --------------------------------------------------------
#
# It is locked and copied while it runs, and stopped only then; it goes on before it is copied back.


class Where(StrEnum):
    """Where the GPU memory of a member is, or on its way to."""

    GPU = "gpu"
    LEAVING = "leaving"
    HOST = "host"
    RETURNING = "returning"


class Act(StrEnum):
    """What follows."""

    SEND_AWAY = "away"
    SEND_BACK = "back"
    STOP = "stop"
    GO_ON = "go on"


@dataclass(frozen=True)
class MemoryState:
    """One member's GPU memory.

    Attributes:
        where: Where it is.
        mb: How much was moved, in MiB; None where that is unknown.
        kept: Why it is never moved again; empty where it may be.
        trouble: Why it could not be brought back yet; empty where that was not tried.
        is_recalled: It is wanted back while it is still leaving.
    """

    where: Where = Where.GPU
    mb: int | None = None
    kept: str = ""
    trouble: str = ""
    is_recalled: bool = False


Step = tuple[MemoryState, tuple[Act, ...]]


def leave(state: MemoryState) -> Step:
    """Its turn is over."""
    if state.where is not Where.GPU or state.kept:
        return state, ()
    return replace(state, where=Where.LEAVING), (Act.SEND_AWAY,)


def note_resumed(state: MemoryState) -> Step:
    """Its processes go on, or are to: by its turn, a signal or its end."""
    if state.where is Where.LEAVING:
        return replace(state, is_recalled=True), ()
    if state.where is Where.HOST:
        return replace(state, where=Where.RETURNING), (Act.SEND_BACK,)
    return state, ()


def note_away(state: MemoryState, mb: int | None, problem: str) -> Step:
    """It is in host memory, or is there still after a problem."""
    if state.where is Where.LEAVING and not problem and not state.is_recalled:
        return replace(state, where=Where.HOST, mb=mb), (Act.STOP,)
    if state.where is Where.LEAVING:
        state = replace(state, mb=mb, kept=problem, is_recalled=False)
        return replace(state, where=Where.RETURNING), (Act.SEND_BACK,)
    if state.where is Where.HOST and problem:
        return replace(state, where=Where.RETURNING, trouble=problem), (Act.GO_ON,)
    return replace(state, trouble=problem), ()


def note_there(state: MemoryState, problem: str) -> Step:
    """It is on the GPU, and its process is not held any more."""
    kept = state.kept or (problem if state.where is Where.LEAVING else "")
    acts = (Act.GO_ON,) if state.where is Where.HOST else ()
    return MemoryState(mb=state.mb, kept=kept), acts


def note_silence(state: MemoryState, problem: str) -> Step:
    """Who makes the driver's calls was replaced, for no answer came."""
    if state.where is Where.LEAVING:
        return replace(state, where=Where.RETURNING, kept=problem, trouble=problem), (
            Act.SEND_BACK,
        )
    if state.where is Where.RETURNING:
        return replace(state, trouble=problem), (Act.SEND_BACK,)
    return state, ()


# ---- How long a turn is; pure --------------------------------------------------------------------

COST_MOST = 0.05
"""The part of the time that moving may take."""


def compute_turn_s(least_s: float, away_s: float, back_s: float) -> float:
    """How long a turn is.

    Args:
        least_s: The least that was asked for.
        away_s: How long the longest move to host memory took; 0 before one is known.
        back_s: The same of the way back.
    """
    return max(least_s, (away_s + back_s) / COST_MOST)


# ---- Who makes the driver's calls ----------------------------------------------------------------

RENEW_S = 5.0
"""How often it is told that the runner is there."""
ANSWER_S = 120.0
"""How long a move may take: 21 GB took 17 s on an H100 into memory that the host had yet to get."""


class MovingProcess:
    """The process that makes the driver's calls; started when it is first needed.

    Args:
        environment: Its environment.
        log: The file for what it says about errors of its own.
    """

    def __init__(self, environment: Mapping[str, str], log: str) -> None:
        self._environment, self._log = environment, log
        self._child: Child | None = None
        self._data = b""

    @property
    def has_ended(self) -> bool:
        """It was started, and has ended by itself."""
        return self._child is not None and self._child.poll() is not None

    def send(self, **request: Any) -> None:
        """Ask it for something.

        Raises:
            OSError: It cannot be started, or has ended.
        """
        if self._child is None:
            self._child = self._start()
        assert self._child.stdin is not None
        os.write(self._child.stdin.fileno(), f"{json.dumps(request)}\n".encode())

    def read(self) -> list[dict[str, Any]]:
        """What it has answered since."""
        if self._child is None or self._child.stdout is None:
            return []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._child.stdout.fileno(), 65536):
                self._data += chunk
        *lines, self._data = self._data.split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """End it at once, as where a call of its hangs; the next request starts another."""
        child, self._child, self._data = self._child, None, b""
        if child is not None:
            child.kill()
            _close(child)

    def leave(self) -> None:
        """Let it bring back what is left, and end."""
        child, self._child = self._child, None
        if child is not None:
            _close(child)

    def _start(self) -> Child:
        argv = [sys.executable, "-IB", "-m", "slurm_colloc.runtime.programs.move_memory"]
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # What a runner's end ends must not end this one: a session of its own.
            child = start_program(
                argv, self._environment, stdin=PIPE, stdout=PIPE, stderr=log, own_session=True
            )
        finally:
            os.close(log)
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        return child


def _close(child: Child) -> None:
    for file in (child.stdin, child.stdout):
        if file is not None:
            file.close()


# ---- Whose turn ends, and who goes on ------------------------------------------------------------

AGAIN_S = 5.0
"""How long after a member could not be brought back it is tried again."""


@dataclass(eq=False, kw_only=True)
class MemoryTurns:
    """Lets members of a pack take turns where `--take-turns` was given.

    Attributes:
        pack: The attempt of the pack.
        pauser: Pauses them.
        memory: What is reserved of the GPU's memory.
        gpu_mode: How they share the GPU.
        rates: Reads their steps.
        progress: What members take of the GPU's memory.
        moving: Makes the driver's calls.
    """

    pack: PackContext
    pauser: MemberPauser
    memory: GpuMemoryRoom
    gpu_mode: GpuMode
    rates: WindowRates
    progress: ProgressReader
    moving: MovingProcess

    def __post_init__(self) -> None:
        self._processes = StepProcesses(str(self.pack.path))
        self._states: dict[int, MemoryState] = {}
        self._starts: dict[int, int] = {}
        self._since: dict[int, float] = {}
        """Since when each is where it is."""
        self._asked_at: dict[int, float] = {}
        """Of whom an answer is waited for, and since when."""
        self._pids: dict[int, list[int]] = {}
        self._again_at: dict[int, float] = {}
        self._took_s = {"away": 0.0, "back": 0.0}
        self._renewed_at = 0.0
        self.pauser.on_resume = self._note_resumed

    def list_moved(self) -> tuple[MovedMemory, ...]:
        """Members whose GPU memory is not on the GPU, or has to stay there; for `csub why`."""
        return tuple(
            MovedMemory(number, None if state.where is Where.GPU else state.mb, problem)
            for number, state in sorted(self._states.items())
            if (problem := state.trouble or state.kept) or state.where is Where.HOST
        )

    def list_due(self) -> list[float]:
        """When something is to be done (monotonic clock)."""
        return [self.pack.clock() + 0.2] if self._asked_at else []

    # -- the runner's turn --------------------------------------------------------------------

    def work(self, look: PackLook, *, is_going_on: bool) -> None:
        """Do what is due: answers, one that does not come, the end of a turn.

        Args:
            look: Looks at the pack.
            is_going_on: Turns may end and begin.
        """
        running = {member.number: member for member in self.pack.members.with_process()}
        self._forget(running)
        for answer in self.moving.read():
            if (member := running.get(answer["member"])) is not None:
                self._follow_answer(member, answer)
        now = self.pack.clock()
        late = [n for n, at in self._asked_at.items() if now - at >= ANSWER_S]
        if late:
            self._replace_moving(running, f"the driver did not answer within {ANSWER_S:g} s")
        elif self.moving.has_ended:
            self._replace_moving(running, "the process that calls the driver has ended")
        if any(s.where is Where.HOST for s in self._states.values()):
            self._renew(now)
        for number in [n for n, at in self._again_at.items() if now >= at]:
            del self._again_at[number]
            self._send(running[number], Act.SEND_BACK)
        if is_going_on and self.pack.members.take_turns and not self._asked_at:
            self._change_turns(running, look.look(), now)

    def close(self) -> None:
        """The runner ends: what is left is brought back."""
        self.moving.leave()

    def _change_turns(self, running: Mapping[int, Member], view: View, now: float) -> None:
        present = (
            replace(facts, turn=self._gather_turn(running[facts.number], now))
            if facts.number in running
            else facts
            for facts in view.present
        )
        match arrange_turns(replace(view, present=tuple(present)), now):
            case Return(number):
                self.pauser.resume([running[number]])
            case EndTurn(number):
                self._end_turn(running[number], list(running.values()))

    def _gather_turn(self, member: Member, now: float) -> TurnFacts:
        state, took_s = self._find(member), self._took_s
        is_there = state.where is Where.GPU and member.end_by is None
        if is_there:
            self._since.setdefault(member.number, now)
        turn_s = member.spec.job.turn_s
        return TurnFacts(
            since=self._since.get(member.number, now),
            lasts_s=compute_turn_s(turn_s, took_s["away"], took_s["back"]),
            may_end=bool(is_there and turn_s and member.pid is not None and not state.kept),
            is_stuck=bool(state.trouble) and state.where is Where.RETURNING,
        )

    def _end_turn(self, member: Member, running: Sequence[Member]) -> None:
        obstacle = (
            self._describe_pack()
            or self.pauser.find_obstacles([member]).get(member.number, "")
            or self._describe_ranks(member)
            or self._describe_host_memory(member, running)
        )
        if obstacle:
            self._keep(member, obstacle)
            return
        self._do(member, leave(self._find(member)))

    def _describe_pack(self) -> str:
        """Why nothing of this pack can be moved; empty where it can."""
        if self.gpu_mode.mode not in (SharingMode.TIMESLICE, SharingMode.EXCLUSIVE):
            return f"it shares by {self.gpu_mode.mode}"
        return "its pack has several GPUs" if len(self.gpu_mode.setup.gpus) > 1 else ""

    def _describe_ranks(self, member: Member) -> str:
        count = self.rates.read(member)
        return "" if count is None else find_parking_obstacle(count.trainers, count.ranks)

    def _describe_host_memory(self, member: Member, running: Sequence[Member]) -> str:
        """Why there is no host memory for a member's GPU memory; empty where there is."""
        need_mb = self.progress.find_gpu_process_mb(member) or self.memory.find_reserved_mb(member)
        limit_mb = member.spec.plan.host_memory_mb
        total_mb = read_host_memory_mb(self.pack.allocation.environment)
        left_mb: int | None
        if limit_mb is not None:
            # Its step has no more, whatever the pack has.
            whose, left_mb = "its part of the pack's --mem", limit_mb - self._find_own_mb([member])
        elif total_mb is not None:
            moved_mb = sum(s.mb or 0 for s in self._states.values() if s.where is not Where.GPU)
            whose, left_mb = "the pack's --mem", total_mb - self._find_own_mb(running) - moved_mb
        else:
            whose, left_mb = "the node", read_available_mb()
        if left_mb is None or need_mb <= left_mb:
            return ""
        return f"it needs {need_mb:.0f} MB of host memory, and {whose} leaves {max(0, left_mb)} MB"

    def _find_own_mb(self, members: Sequence[Member]) -> int:
        """The host memory that members ask for, or use where that is more."""
        found = self._processes.find(list_wrappers_of(members))
        used_mb = {n: read_own_mb([p.id.pid for p in all_]) for n, all_ in found.items()}
        return sum(max(m.spec.job.host_memory_mb or 0, used_mb.get(m.number, 0)) for m in members)

    # -- acting -------------------------------------------------------------------------------

    def _find(self, member: Member) -> MemoryState:
        return self._states.get(member.number, MemoryState())

    def _forget(self, running: Mapping[int, Member]) -> None:
        for number, start in list(self._starts.items()):
            if number not in running or running[number].record.starts != start:
                for kept in (self._states, self._starts, self._since, self._asked_at):
                    kept.pop(number, None)
                self._again_at.pop(number, None)
                if number in self.pack.members.by_number:
                    self.pack.members.by_number[number].let_go(Stage.AWAY)

    def _keep(self, member: Member, reason: str) -> None:
        self._starts[member.number] = member.record.starts
        self._states[member.number] = replace(self._find(member), kept=reason)
        self.pack.journal.write("keeps_gpu_memory", member=member.number, reason=reason)

    def _do(self, member: Member, step: Step) -> None:
        before, (state, acts) = self._find(member), step
        self._states[member.number] = state
        self._starts[member.number] = member.record.starts
        (member.keep_at if state.where is Where.HOST else member.let_go)(Stage.AWAY)
        if state.where is not before.where:
            self._since[member.number] = self.pack.clock()
        if state.kept and state.kept != before.kept:
            self._keep(member, state.kept)
        for act in acts:
            if act is Act.STOP:
                self.pauser.pause([member], PARKED)
                if member.paused_at is None:
                    self._do(member, note_resumed(state))
            elif act is Act.GO_ON:
                self.pauser.resume([member])
            else:
                self._send(member, act)
        if state.where is Where.RETURNING and state.trouble and not acts:
            self._again_at[member.number] = self.pack.clock() + AGAIN_S

    def _send(self, member: Member, act: Act) -> None:
        if act is Act.SEND_AWAY:
            found = self._processes.find(list_wrappers_of([member]))
            self._pids[member.number] = [p.id.pid for p in found.get(member.number, ())]
        self._asked_at[member.number] = self.pack.clock()
        with contextlib.suppress(OSError):
            # Where it has ended it is replaced at the next turn.
            pids = self._pids.get(member.number, [])
            self.moving.send(do=act.value, member=member.number, pids=pids)

    def _follow_answer(self, member: Member, answer: Mapping[str, Any]) -> None:
        self._asked_at.pop(member.number, None)
        state, at, problem = self._find(member), answer["at"], answer["reason"]
        if answer["pid"]:
            self._pids[member.number] = [answer["pid"]]
        if state.where is Where.LEAVING and at == "there" and not problem:
            # It has no GPU memory yet: its turn begins anew.
            self._do(member, note_there(state, problem))
            return
        if not problem and state.where in (Where.LEAVING, Where.RETURNING):
            way = "away" if state.where is Where.LEAVING else "back"
            self._took_s[way] = max(self._took_s[way], answer["seconds"])
        self.pack.journal.write(
            "moved_gpu_memory", member=member.number, now=at, mb=answer["mb"] or state.mb,
            seconds=round(answer["seconds"], 2), reason=problem,
        )  # fmt: skip
        if at == "away":
            mb = state.mb if answer["mb"] is None else answer["mb"]
            self._do(member, note_away(state, mb, problem))
        else:
            self._do(member, note_there(state, problem))

    def _note_resumed(self, member: Member) -> None:
        if member.number in self._states:
            self._do(member, note_resumed(self._find(member)))

    def _replace_moving(self, running: Mapping[int, Member], problem: str) -> None:
        self.pack.journal.write("replaces_moving", reason=problem)
        self.moving.kill()
        self._asked_at.clear()
        for number, state in list(self._states.items()):
            if state.where is Where.HOST:
                with contextlib.suppress(OSError):
                    self.moving.send(do="adopt", member=number, pids=self._pids[number])
            self._do(running[number], note_silence(state, problem))

    def _renew(self, now: float) -> None:
        if now >= self._renewed_at + RENEW_S:
            self._renewed_at = now
            with contextlib.suppress(OSError):
                self.moving.send(do="renew")


def read_own_mb(pids: Sequence[int]) -> int:
    """What processes use together in MB, shared memory counted once; those that are gone, none."""
    total_kb = 0
    for pid in pids:
        # proc(5): smaps_rollup.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            total_kb += sum(int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
    return total_kb // 1024


def read_available_mb() -> int | None:
    """The node's host memory that programs may still take, in MB; None where it is unknown."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
    return None
