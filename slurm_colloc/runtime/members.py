"""The members that a runner knows, and the places in which they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import TRANSITIONS, MemberId, MemberState, Stage
from slurm_colloc.runtime.allocation import Allocation, choose_places
from slurm_colloc.runtime.guarded_steps import is_passing
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.store.member_states import GpuUse, HomeRecord, StateRecord
from slurm_colloc.store.pack_directory import MemberSpec, list_members, read_spec


@dataclass
class PackPlace:
    """A place in the pack: as many as the degree, each with its own CPUs.

    Attributes:
        index: Its number, from 0.
        wanted: CPUs it was made for.
        cpus: CPU numbers; empty where members are not bound.
        occupant: The number of the member in it, None while it is free.
    """

    index: int
    wanted: int
    cpus: tuple[int, ...]
    occupant: int | None = None

    def choose_cpus(self, wanted: int) -> tuple[int, ...]:
        """The CPUs for a member: all of the place, or as many as it wants of a larger one."""
        return self.cpus if wanted >= self.wanted else self.cpus[:wanted]


@dataclass
class Member:
    """One member, as its runner keeps it.

    Attributes:
        number: Its number in the pack.
        spec: What it runs.
        record: Its state as last written.
        process: The srun or wrapper that runs it, None while it does not run.
        prefix: Path prefix of the files of its present start.
        tmpdir: Its own directory for temporary files; empty where it has none of its own.
        places: Folders of its own in directories of the job, and whether it has such places; see
            runtime.programs.own_places.
        launcher: `srun` or `process`, as it was last started.
        pid: Process id of its script, once it has started.
        wrapper_pid: Process id of its wrapper, once it has started.
        deadline: When its wall limit ends (monotonic clock), None for no limit.
        signal_at: When `--signal` is due (monotonic clock), None where it is not.
        asked: Why the runner is ending it, None where it is not.
        end_by: When the runner kills it if it has not ended (monotonic clock).
        ended_at: When its record of the end was seen although its srun still ran (monotonic clock).
        is_orphan: Its srun is gone, and it is followed by its wrapper's process id.
        gpu: How it was put on the GPU at its last start.
        outputs: Its output files, each with its size when it started.
        reserved_mb: GPU memory that was reserved for its present start; None where that is unknown.
        paused_at: Since when its processes are stopped (monotonic clock), None where they run.
        paused_s: Seconds that its processes were stopped since its present start.
        kept_at: The stage in which it is kept although it has a process: LOADING, PARKED or AWAY;
            None where it goes on. `keep_at` and `let_go` alone change it.
        home: Where it was submitted; None for one of the pack's own submission.
    """

    number: int
    spec: MemberSpec
    record: StateRecord
    process: StartedProcess | None = None
    prefix: str = ""
    tmpdir: str = ""
    places: tuple[str, ...] | None = None
    launcher: str = ""
    pid: int | None = None
    wrapper_pid: int | None = None
    deadline: float | None = None
    signal_at: float | None = None
    asked: StopReason | None = None
    end_by: float | None = None
    ended_at: float | None = None
    is_orphan: bool = False
    gpu: GpuUse | None = None
    outputs: tuple[tuple[str, int], ...] = ()
    reserved_mb: int | None = None
    paused_at: float | None = None
    paused_s: float = 0.0
    kept_at: Stage | None = None
    home: HomeRecord | None = None

    def name(self, shown_id: str) -> MemberId:
        """The name by which its user knows it.

        Args:
            shown_id: The id that the pack's own members are named after.
        """
        if self.home is None:
            return MemberId(shown_id, self.number, self.spec.joined_as)
        return MemberId(self.home.job, self.home.number, self.spec.joined_as)

    @property
    def is_final(self) -> bool:
        """It will not run again."""
        return self.record.is_final

    @property
    def stage(self) -> Stage:
        """Where it stands."""
        if self.process is None:
            return Stage.ENDED if self.is_final else Stage.WAITING
        if self.kept_at is not None:
            return self.kept_at
        return Stage.RUNNING if self.asked is None else Stage.ENDING

    @property
    def is_at_door(self) -> bool:
        """It was started to load its program, and may not use the GPU yet."""
        return self.kept_at is Stage.LOADING

    @property
    def is_parked(self) -> bool:
        """It is paused until a place is free for it."""
        return self.kept_at is Stage.PARKED

    @property
    def is_moved(self) -> bool:
        """It is paused, and its GPU memory is in host memory."""
        return self.kept_at is Stage.AWAY

    def keep_at(self, stage: Stage) -> None:
        """Keep it from going on: before the GPU, or paused on it."""
        assert stage in (Stage.LOADING, Stage.PARKED, Stage.AWAY)
        self.kept_at = stage

    def let_go(self, stage: Stage) -> None:
        """It goes on, where it was kept in this stage."""
        if self.kept_at is stage:
            self.kept_at = None

    @property
    def is_starting(self) -> bool:
        """It was launched and its wrapper has not reported yet."""
        return self.process is not None and self.pid is None

    def begin_time(self, now: float) -> None:
        """Its wall limit, and what is due before that, counts from now (monotonic clock)."""
        limit_s, signal = self.spec.plan.wall_limit_s, self.spec.job.signal
        if limit_s is not None:
            self.deadline = now + limit_s
            if signal is not None:
                self.signal_at = self.deadline - signal.seconds_before_end

    def stop_time(self) -> None:
        """Nothing is due for it until its time begins anew."""
        self.deadline = self.signal_at = None

    def resume(self, now: float, paused_again_at: float | None = None) -> None:
        """It has gone on: all that is due for it is set back by the time that was not its own.

        Args:
            now: Since when it runs (monotonic clock).
            paused_again_at: When it was paused again after that; None where it runs on.
        """
        paused_s = now - (now if self.paused_at is None else self.paused_at)
        self.paused_at = paused_again_at
        self.paused_s += paused_s
        if self.deadline is not None:
            self.deadline += paused_s
        if self.signal_at is not None:
            self.signal_at += paused_s

    def note_mps_client(self, *, is_client: bool) -> None:
        """It is known whether it is a client of the MPS server under which it was put."""
        assert self.gpu is not None
        self.gpu = replace(self.gpu, is_mps_client=is_client)

    def forget_start(self) -> None:
        """Its present start is over: its processes, and what was asked of it, are forgotten."""
        self.process = self.pid = self.wrapper_pid = None
        self.asked = self.end_by = self.ended_at = None
        self.is_orphan, self.kept_at = False, None
        self.reserved_mb, self.paused_s = None, 0.0
        self.stop_time()

    def list_due(self) -> list[float]:
        """When something is to be done about it (monotonic clock); never while it is paused."""
        if self.paused_at is not None:
            return [] if self.end_by is None else [self.end_by]
        # Who is being ended has no limit any more that one would wake for.
        limit = self.deadline if self.asked is None else None
        moments = (limit, self.signal_at, self.end_by)
        return [moment for moment in moments if moment is not None]

    def check_transition(self, state: MemberState) -> None:
        """Hold the transition table.

        Raises:
            ValueError: The table does not allow this step.
        """
        if state not in TRANSITIONS[self.record.state] and state != self.record.state:
            raise ValueError(f"member {self.number}: {self.record.state} -> {state}")


class PackMembers:
    """All members of a pack and its places."""

    def __init__(self, places: list[PackPlace]) -> None:
        self.places = places
        self.by_number: dict[int, Member] = {}
        self.waiting: deque[int] = deque()
        self.takes_one = False
        """Only one member can run at a time, however many places there are."""

    def list_members(self) -> list[Member]:
        """All members by number."""
        return [self.by_number[number] for number in sorted(self.by_number)]

    def with_process(self) -> list[Member]:
        """Members that have a process, those at the door among them."""
        return [member for member in self.by_number.values() if member.process is not None]

    def running(self) -> list[Member]:
        """Members that have a process and may use the GPU."""
        return [member for member in self.with_process() if not member.is_at_door]

    def find_places(self, wanted: int) -> list[PackPlace]:
        """The free places that a member of so many CPUs takes; none where they do not suffice.

        The smallest that is large enough, or several. One that wants more than all places have
        takes the largest.
        """
        free = [place for place in self.places if place.occupant is None]
        enough = [place for place in free if place.wanted >= wanted]
        if enough:
            return [min(enough, key=lambda place: (place.wanted, place.index))]
        free.sort(key=lambda place: (-place.wanted, place.index))
        if sum(place.wanted for place in self.places) < wanted:
            return free[:1]
        for count in range(2, len(free) + 1):
            if sum(place.wanted for place in free[:count]) >= wanted:
                return free[:count]
        return []

    def occupy(self, number: int, places: Sequence[PackPlace]) -> PackPlace:
        """Let a member have these places; what they are together."""
        for place in places:
            place.occupant = number
        return PackPlace(
            places[0].index,
            sum(place.wanted for place in places),
            tuple(cpu for place in places for cpu in place.cpus),
            number,
        )

    @property
    def take_turns(self) -> bool:
        """GPU memory alone bounds how many run, and members take turns (`--take-turns`)."""
        return any(member.spec.job.turn_s for member in self.by_number.values())

    def forget(self, number: int) -> None:
        """Forget a member that another pack has taken over: it waits there."""
        self.by_number.pop(number, None)
        if number in self.waiting:
            self.waiting.remove(number)

    def vacate(self, number: int) -> None:
        """Free the place of a member."""
        for place in self.places:
            if place.occupant == number:
                place.occupant = None

    def place_of(self, number: int) -> PackPlace | None:
        """The place of a member, None if it has none."""
        return next((place for place in self.places if place.occupant == number), None)


def make_places(
    pack: Path,
    degree: int,
    allocation: Allocation,
    *,
    lone: bool,
    others: Sequence[Path] = (),
) -> tuple[list[PackPlace], str]:
    """A place for each of the members that run at the same time, the largest first.

    Args:
        pack: The pack's directory.
        degree: How many run at the same time.
        allocation: What Slurm gave.
        lone: The pack has one member, which has all of it.
        others: Packs whose members it runs where it has none of its own.

    Returns:
        The places, and why their members are not bound to CPUs; empty where they are.

    Raises:
        StateError: The file system fails.
    """
    # Where none can be read each of them fails alone, and later ones need a place all the same.
    found = next(filter(None, map(_read_wants, (pack, *others))), [])
    wants = sorted(found, reverse=True) or [allocation.cpus_allocated]
    wanted = _fill_up(wants[:degree], degree, allocation)
    shares: tuple[tuple[int, ...], ...] = ((),)
    why = ""
    if not lone:
        shares, why = choose_places(allocation, wanted)
    places = [
        PackPlace(index, want, cpus)
        for index, (want, cpus) in enumerate(zip(wanted, shares, strict=True))
    ]
    return places, why


def _fill_up(wanted: list[int], degree: int, allocation: Allocation) -> list[int]:
    """Places for members that may be taken over: like the smallest of its own, as CPUs are left."""
    left = allocation.cpus_allocated - sum(wanted)
    more = min(degree - len(wanted), left // max(1, wanted[-1]))
    return wanted + wanted[-1:] * max(0, more)


def _read_wants(pack: Path) -> list[int]:
    """The CPUs of each member; what is wrong with a damaged one is told where it is taken in."""
    wants = []
    for number in list_members(pack):
        try:
            wants.append(read_spec(pack, number).plan.cpus)
        except StateError as error:
            if is_passing(error):
                raise
    return wants
