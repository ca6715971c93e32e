"""A member's name, its states and how a reader must see them.

Also: why a member ended, finer than Slurm's states; what a member's wrapper has written about its
end; programs that take GPU memory as they start, before they need any: JAX and TensorFlow.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from signal import SIGTERM
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import join_numbers, parse_job_id
from slurm_colloc.model.late_definitions import dataclass, field, late_pattern


class MemberState(enum.StrEnum):
    """What a member can be; the words are Slurm's (squeue(1), JOB STATE CODES)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    REQUEUED = "REQUEUED"
    LOST = "LOST"


FINAL_STATES = frozenset(
    {
        MemberState.COMPLETED,
        MemberState.FAILED,
        MemberState.CANCELLED,
        MemberState.TIMEOUT,
        MemberState.OUT_OF_MEMORY,
        MemberState.PREEMPTED,
        MemberState.NODE_FAIL,
        MemberState.REQUEUED,
        MemberState.LOST,
    }
)

# The runner alone moves a member. A running member goes back to PENDING when it is requeued.
# LOST and REQUEUED (submitted again in another pack) are never written: a reader concludes them.
TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    MemberState.PENDING: frozenset(
        {
            MemberState.RUNNING,
            MemberState.CANCELLED,
            MemberState.FAILED,
            MemberState.TIMEOUT,
            MemberState.OUT_OF_MEMORY,
        }
    ),
    MemberState.RUNNING: (FINAL_STATES - {MemberState.LOST, MemberState.REQUEUED})
    | {MemberState.PENDING},
    **{state: frozenset() for state in FINAL_STATES},
}


@dataclass(frozen=True)
class ExitCode:
    """How a program ended, as Slurm writes it: `code:signal`.

    Attributes:
        code: Exit status, 0 to 255.
        signal: The signal that ended it, or 0.
    """

    code: int = 0
    signal: int = 0

    def __str__(self) -> str:
        return f"{self.code}:{self.signal}"

    @property
    def shell_status(self) -> int:
        """One number as a shell would give it: 128 + signal, or the code."""
        return 128 + self.signal if self.signal else self.code

    @classmethod
    def from_wait_status(cls, status: int) -> ExitCode:
        """Read the status word of wait(2)."""
        signal = status & 0x7F
        return cls(0, signal) if signal else cls((status >> 8) & 0xFF, 0)

    @classmethod
    def parse(cls, text: str) -> ExitCode:
        """Read `code:signal`.

        Raises:
            ValueError: The text is something else.
        """
        code, _, signal = text.partition(":")
        return cls(int(code), int(signal or "0"))


_MEMBER_ID = late_pattern(r"(?a)(L?\d+)[/_](\d+)")


@dataclass(frozen=True, order=True)
class MemberId:
    """A member's name, written `4711/3`, or by the number of a job that has joined a pack.

    Attributes:
        job: The Slurm job id (of the array, if the packs are an array), or `L` and a number
            for packs that run without Slurm.
        number: The member's number, the user's own task number for `--array`.
        joined_as: The number that the call printed by which it joined the pack; empty where it was
            there from the pack's beginning, or was given none.
    """

    job: str
    number: int
    joined_as: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.joined_as or self.address

    @property
    def address(self) -> str:
        """Where it is: `4711/3`, also for a job that has joined the pack of 4711."""
        return f"{self.job}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> MemberId:
        """Read `4711/3`, or `4711_3` as Slurm writes a task.

        Raises:
            UsageProblem: The text is something else.
        """
        match = _MEMBER_ID.fullmatch(text)
        if not match:
            raise UsageProblem(
                f"{text!r} is not a member id", hint="a member is written 4711/3, see csub queue"
            )
        return cls(match[1], int(match[2]))


GUESTS_FROM = 100_000_000
"""The first number in a pack that is none of its own submission's (store.member_states):
Slurm's tasks end at 4,000,000."""


def is_guest(number: int) -> bool:
    """Whether the number of a member in a pack is one of another submission."""
    return number >= GUESTS_FROM


def tell_number(number: int) -> str:
    """A member of a pack in a sentence about that pack, which knows its number there alone."""
    return "of another submission" if is_guest(number) else str(number)


LAST = "last"
"""Selects the newest submission."""

ALL = "all"
"""Selects every member that has not ended."""


@dataclass(frozen=True)
class Selection:
    """What the user named: `4711`, `4711/3`, `4711/2-5`, `4711/1,3,5-7`, `last`, `last/2`, `all`.

    `4711_3` and `4711_[1-3,5]` are read, too; see model.job_ids.

    Attributes:
        job: The submission's id, `last` or `all`.
        ranges: First and last member number of each part; None for all members.
    """

    job: str
    ranges: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read one selector.

        Raises:
            UsageProblem: The text is none.
        """
        if text == ALL:
            return cls(text)
        try:
            found = parse_job_id(text)
        except ValueError as error:
            raise UsageProblem(str(error)) from error
        if found is None:
            raise UsageProblem(
                f"{text!r} names neither a pack nor a member",
                hint="write 4711 for all members of a submission, 4711/3 or 4711/2-5 for some, "
                "last for the newest submission, or all",
            )
        return cls(*found)

    @classmethod
    def of(cls, job: str, numbers: Iterable[int]) -> Selection:
        """The selection of these members of a submission."""
        return cls(job, join_numbers(tuple(sorted(numbers))))

    @classmethod
    def of_each(cls, members: Iterable[MemberId]) -> list[Selection]:
        """Selections of these very members, one for each submission."""
        numbers: dict[str, set[int]] = {}
        for member in members:
            numbers.setdefault(member.job, set()).add(member.number)
        return [cls.of(job, chosen) for job, chosen in numbers.items()]

    def includes(self, number: int) -> bool:
        """It names this member of the submission."""
        return self.ranges is None or any(first <= number <= last for first, last in self.ranges)

    def means(self, member: MemberId) -> bool:
        """It means this member of the submission: a bare id means none that has joined its pack."""
        return self.includes(member.number) and (self.ranges is not None or not member.joined_as)

    def names(self, number: int) -> bool:
        """It names this number by itself, and not in a range."""
        return (number, number) in (self.ranges or ())

    def __str__(self) -> str:
        if self.ranges is None:
            return self.job
        parts = (f"{a}-{b}" if b > a else f"{a}" for a, b in self.ranges)
        return f"{self.job}/{','.join(parts)}"


class SlurmJobState(enum.StrEnum):
    """The states of a Slurm job that matter here; ABSENT means that Slurm does not know it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    ABSENT = "ABSENT"

    @property
    def may_have_runner(self) -> bool:
        """A runner of its pack may be there, to note what becomes of members."""
        return self in (self.RUNNING, self.SUSPENDED, self.COMPLETING)

    @classmethod
    def parse(cls, text: str) -> SlurmJobState:
        """Read the long state name of squeue or scontrol (22.05 to 26.05), `CANCELLED by 0` too."""
        words = text.split(maxsplit=1)
        word = words[0].partition("+")[0] if words else ""
        try:
            return cls(_ALIASES.get(word, word))
        except ValueError:
            return cls.FAILED


_ALIASES = {
    "": "ABSENT",
    "CONFIGURING": "PENDING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "EXPEDITING": "PENDING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STAGE_OUT": "COMPLETING",
    "STOPPED": "SUSPENDED",
    "DEADLINE": "TIMEOUT",
    "REVOKED": "CANCELLED",
    "BOOT_FAIL": "NODE_FAIL",
    "LAUNCH_FAILED": "FAILED",
}

_ENDED_LIKE_THE_JOB = {
    SlurmJobState.CANCELLED: MemberState.CANCELLED,
    SlurmJobState.TIMEOUT: MemberState.TIMEOUT,
    SlurmJobState.OUT_OF_MEMORY: MemberState.OUT_OF_MEMORY,
    SlurmJobState.PREEMPTED: MemberState.PREEMPTED,
    SlurmJobState.NODE_FAIL: MemberState.NODE_FAIL,
}


def effective_state(
    recorded: MemberState,
    slurm: SlurmJobState | None,
    *,
    cancelled: bool = False,
    moved: bool = False,
    held: bool = False,
    begun: bool = True,
    has_ended: bool = False,
) -> MemberState:
    """Say what a member is, from what the runner wrote last and what Slurm says of its job.

    Args:
        recorded: The newest state in the pack directory; PENDING where none was written.
        slurm: The state of the pack's Slurm job; None where Slurm could not be asked, and then
            the record is all there is.
        cancelled: The member was taken out of the queue before it started.
        moved: It never started here and was submitted again in another pack.
        held: It is held: while it waits it outlives its pack, unless that is cancelled.
        begun: A runner of its pack has started. A pack that failed before that had a batch script
            that could not start, and so have all of its members.
        has_ended: Its record says so, also in a word that only a newer csub knows.

    Returns:
        The state to show. This is the only place that says LOST: the job is over, and no process
        wrote how the member ended.
    """
    if has_ended or recorded in FINAL_STATES:
        return recorded
    if cancelled:
        return MemberState.CANCELLED
    if moved:
        return MemberState.REQUEUED
    is_kept = held and recorded is MemberState.PENDING and slurm is not SlurmJobState.CANCELLED
    if slurm is SlurmJobState.PENDING or is_kept:
        return MemberState.PENDING
    if slurm is None:
        return recorded
    if slurm.may_have_runner:
        return recorded
    if slurm is SlurmJobState.FAILED and not begun:
        return MemberState.FAILED
    return _ENDED_LIKE_THE_JOB.get(slurm, MemberState.LOST)


# ---- Why a member ended, finer than Slurm's states -----------------------------------------------

RESUBMISSIONS = 3
"""How often a member that never started is submitted again."""


class EndCause(enum.StrEnum):
    """The class of an end; `csub explain` says what each means."""

    SUCCESS = "success"
    EXIT_CODE = "exit code"
    SIGNAL = "signal"
    TIME_LIMIT = "time limit"
    CUDA_OUT_OF_MEMORY = "CUDA out of memory"
    HOST_OUT_OF_MEMORY = "host out of memory"
    CUDA_FAULT = "CUDA fault"
    MPS_CULPRIT = "MPS fault: culprit"
    MPS_VICTIM = "MPS fault: victim"
    MPS_SUSPECT = "MPS fault: culprit or victim"
    MPS_GONE = "MPS daemon gone"
    MPS_FULL = "too many MPS clients"
    NOT_STARTED = "not started"
    GPU_LOST = "GPU lost"
    NODE_FAILURE = "node failure"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"


_BY_STATE = {
    MemberState.COMPLETED: EndCause.SUCCESS,
    MemberState.TIMEOUT: EndCause.TIME_LIMIT,
    MemberState.OUT_OF_MEMORY: EndCause.HOST_OUT_OF_MEMORY,
    MemberState.CANCELLED: EndCause.CANCELLED,
    MemberState.PREEMPTED: EndCause.PREEMPTED,
    MemberState.NODE_FAIL: EndCause.NODE_FAILURE,
    MemberState.LOST: EndCause.LOST,
}


def choose_plain_cause(
    state: MemberState, code: ExitCode | None, *, started: bool = True
) -> EndCause | None:
    """The class that a state and an exit code alone tell; None where the member has not ended.

    Args:
        state: The state that readers show.
        code: How the script ended, None where that was not seen.
        started: It had come up.
    """
    if state is MemberState.FAILED:
        if not started:
            return EndCause.NOT_STARTED
        return EndCause.SIGNAL if code is not None and code.signal else EndCause.EXIT_CODE
    return _BY_STATE.get(state)


# ---- Why a member waits, as its runner writes it down --------------------------------------------


class Stage(enum.Enum):
    """Where a member stands in a pack that runs."""

    WAITING = enum.auto()
    LOADING = enum.auto()
    """It was started to load its program, and may not use the GPU yet."""
    RUNNING = enum.auto()
    PARKED = enum.auto()
    """Its processes are stopped until there is room for them."""
    AWAY = enum.auto()
    """Stopped likewise, and its GPU memory is in host memory."""
    ENDING = enum.auto()
    """It was told to end, and has not ended yet."""
    ENDED = enum.auto()


class WaitKind(enum.StrEnum):
    """What a waiting member waits for."""

    HELD = "held"
    DEPENDENCY = "dependency"
    MOVED = "moved"
    """It was submitted again in another pack."""
    TIME = "time"
    """A pack with more time: too little is left of this one."""
    PLACES = "places"
    """All places are taken."""
    AGAIN = "again"
    """The same, for one that ran before."""
    ALONE = "alone"
    """The GPU to itself."""
    PLACE = "place"
    """A place with more CPUs, it or the one before it."""
    MEASURING = "measuring"
    DEGREE = "degree"
    """As many run as may."""
    MEMORY = "memory"
    DOOR = "door"
    """One that has loaded its program goes first."""
    INSTANCE = "instance"
    PREPARING = "preparing"
    SIGNALLED = "signalled"
    ENDING = "ending"


OF_GPU = frozenset(
    {
        *(WaitKind.MEASURING, WaitKind.DEGREE, WaitKind.MEMORY, WaitKind.DOOR, WaitKind.INSTANCE),
    }
)
"""Why none starts although there is a place: the GPU has no room for the next one."""


@dataclass(frozen=True)
class WaitReason:
    """Why a member waits, with the facts that there are of its kind.

    What is decided by it goes by its kind; its words (model.why_not_now) are only shown.

    Attributes:
        kind: What it waits for.
        name: A member, or a condition (`afterok:4711/3`).
        told: What was measured, answered or decided, in words.
        count: How many run; how many have reserved memory; how many CPUs are wanted; how many
            places there are, 0 where the GPU takes one member at a time.
        names: Members that have a place.
        taken_mb: GPU memory that is reserved.
        usable_mb: What there is.
        need_mb: What it may take; None where that is not known.
        left_s: What is left of the pack's time, or of the first of `names`; None for no limit.
        limit_s: What it may take of that.
    """

    kind: WaitKind
    name: str = ""
    told: str = ""
    count: int = 0
    names: tuple[str, ...] = ()
    taken_mb: int = 0
    usable_mb: int = 0
    need_mb: int | None = None
    left_s: int | None = None
    limit_s: int = 0


# ---- What a member's wrapper has written about its end; pure -------------------------------------


@dataclass(frozen=True)
class ExitRecord:
    """How the script of a member has ended.

    Attributes:
        code: Its exit status.
        oom_kills: How many of its processes the kernel has killed because of host memory.
        was_terminated: Its runner had told it to end, with a TERM.
        was_signalled: Something else had sent it a TERM: Slurm, where the job is to end.
        problem: Why the script could not be started; empty where it was.
        started_at: When it began, in seconds since the epoch; None where that is not told.
        ended_at: When it ended, likewise.
    """

    code: ExitCode
    oom_kills: int = 0
    was_terminated: bool = False
    was_signalled: bool = False
    problem: str = ""
    started_at: float | None = None
    ended_at: float | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ExitRecord:
        """Read the wrapper's record.

        Raises:
            KeyError: It is none.
            TypeError: Likewise.
            ValueError: Likewise.
        """
        return cls(
            code=ExitCode.from_wait_status(int(value["wait_status"])),
            oom_kills=int(value.get("oom_kills") or 0),
            was_terminated=bool(value.get("terminated")),
            was_signalled=any(number == SIGTERM for number, _ in value.get("foreign_signals", ())),
            problem=str(value.get("problem") or ""),
            started_at=_read_moment(value.get("started_at")),
            ended_at=_read_moment(value.get("at")),
        )

    @property
    def is_its_own(self) -> bool:
        """It has ended without being told to: whatever becomes of its pack, it has ended.

        One that a TERM has ended may have saved what it had, and be meant to go on.
        """
        return not (self.was_terminated or self.was_signalled or self.code.signal == SIGTERM)

    @property
    def state(self) -> MemberState:
        """What it is where it has ended by itself."""
        if self.oom_kills:
            return MemberState.OUT_OF_MEMORY
        return MemberState.COMPLETED if self.code == ExitCode() else MemberState.FAILED

    @property
    def reason(self) -> str:
        """The same in words; empty for success."""
        if self.oom_kills:
            return "it used more host memory than its limit"
        return self.problem or describe_code(self.code)


def describe_code(code: ExitCode) -> str:
    """Say how a script ended, nothing for success."""
    if code.signal:
        return f"ended by signal {code.signal}"
    return f"exit code {code.code}" if code.code else ""


def _read_moment(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


# ---- Programs that take GPU memory as they start, before they need any: JAX and TensorFlow -------

JAX_GROWS = "XLA_PYTHON_CLIENT_PREALLOCATE=false"
TENSORFLOW_GROWS = "TF_FORCE_GPU_ALLOW_GROWTH=true"
"""What keeps them from that."""

PART_AT_ONCE = 0.7
"""What takes so much of what it may take, at once, takes it by that: JAX asks for 75 %."""

BEYOND_ALL = 1.1
"""What has more than it may take, and NVML's overhead, was not bounded by that: several processes
share a limit that each has, or MPS was not reached."""


_TAKERS = late_pattern(r"(?m)^\s*(?:import|from)\s+(?:jax|flax|tensorflow|keras)\b")
_GROWERS = late_pattern(r"XLA_PYTHON_CLIENT_|TF_FORCE_GPU_ALLOW_GROWTH|set_memory_growth")


def takes_at_once(text: str) -> bool:
    """Whether a program is one of these and says nothing of how much it is to take.

    Args:
        text: Its script and its Python files.
    """
    return _TAKERS.search(text) is not None and _GROWERS.search(text) is None


def describe_taken_at_once(taken_mb: float | None, may_take_mb: int | None) -> str:
    """That a process took most of what it may take before it did anything; empty where not.

    Args:
        taken_mb: GPU memory that it took in its first seconds on the GPU, before any step, without
            PyTorch's allocator; None where that is not known.
        may_take_mb: What it may take at most; None where that is not known.
    """
    if taken_mb is None or may_take_mb is None:
        return ""
    if not PART_AT_ONCE * may_take_mb <= taken_mb <= BEYOND_ALL * may_take_mb:
        return ""
    return (
        f"it took {taken_mb:.0f} of {may_take_mb} MB of GPU memory at once, before any step, as "
        f"JAX and TensorFlow do: with export {JAX_GROWS} (JAX) or export {TENSORFLOW_GROWS} "
        "(TensorFlow) in its script it takes what it needs"
    )
