"""What a runner reads of other packs of its user, to see who waits in them and may leave them.

The other GPU sets of its own Slurm job are such packs (`JobSets`). Of the others Slurm is asked
whether they wait for their turn alone, and told to end those that were emptied (`EmptiedJobs`).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import SlurmError, StateError
from slurm_colloc.host.system.node_processes import ProcessId, is_alive
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.measured_curve import DegreeState
from slurm_colloc.model.member import SlurmJobState, is_guest
from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.planning.same_kind import (
    compare_policies,
    compute_reason_to_stay,
    find_difference,
)
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.slurm.slurm_commands import SlurmJob, find_job_of
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State, list_gpu_set_packs
from slurm_colloc.store.atomic_files import hold_lock, is_there
from slurm_colloc.store.inbox import forget_idle, format_number, is_idle, mark_idle
from slurm_colloc.store.member_states import (
    empty_pack,
    has_left_to_run,
    read_attempt,
    read_state,
)
from slurm_colloc.store.pack_directory import (
    PackRecord,
    list_claimed,
    read_ended,
    read_setup,
    read_slurm_job_id,
)
from slurm_colloc.store.runner_requests import read_degree
from slurm_colloc.store.written_ends import read_runner, was_killed


@dataclass(frozen=True)
class SisterPack:
    """Another pack that asked Slurm for the same.

    Attributes:
        path: Its directory.
        record: Its pack.json.
        attempt: Its newest attempt; 0 where it has not begun.
        job_id: What Slurm calls it; None while that is not known.
        may_have_room: It has begun, and is being measured or has measured room for more.
        gives: It runs as many as is best by what was measured, and has no free place.
        guests_of: The id of its submission where that is another one; empty for a sister.
    """

    path: Path
    record: PackRecord
    attempt: int
    job_id: str | None
    may_have_room: bool = False
    gives: bool = False
    guests_of: str = ""

    @property
    def name(self) -> str:
        """The pack's id."""
        return self.path.name


def may_take_over(record: PackRecord) -> bool:
    """Whether a pack may run more than it was planned with.

    Who asked for a number of members a pack, or for speed of each, is given just that.
    """
    policy = record.policy
    return (
        policy is not None
        and policy.goal is Goal.THROUGHPUT
        and policy.pack_size is None
        and record.mode is not SharingMode.EXCLUSIVE
        and not record.chain
    )


def are_alike(own: PackRecord, other: PackRecord) -> bool:
    """Whether two packs asked Slurm for the same kind of thing, and share in the same way."""
    return (
        other.request is not None
        and not (own.chain or other.chain)
        and not other.local
        and own.group == other.group
        and own.gpu_type == other.gpu_type
        and own.cluster == other.cluster
        and own.policy == other.policy
        and own.share == other.share
    )


def explain_difference(own: PackRecord, other: PackRecord) -> str:
    """Say why members of one submission and those of another do not move; empty where they may."""
    if own.chain or other.chain:
        return "a chain goes on in Slurm jobs of its own"
    if other.local:
        return "it runs alone"
    if SharingMode.MIG in (own.mode, other.mode):
        return "MIG instances are made for the members of one submission"
    if own.cluster != other.cluster:
        return f"its cluster is {other.cluster}, not {own.cluster}"
    return (
        compute_reason_to_stay(other.policy, other.group)
        or (other.closed if other.request is None else "")
        or find_difference(own, other)
        or (compare_policies(own.policy, other.policy) if own.policy and other.policy else "")
    )


def read_sister(
    state: State, path: Path, own: PackRecord, guests_of: str = ""
) -> SisterPack | None:
    """Read another pack; None where nothing can come from it, or it cannot be read.

    Args:
        state: The state directory.
        path: The pack.
        own: The pack that asks.
        guests_of: The id of its submission where that is another one, and its members may come
            (`explain_difference`); empty for a sister.
    """
    try:
        if not is_there(state.open / path.name) or read_ended(path) is not None:
            return None
        record = state.read_pack(path.name)
        if record is None or not (guests_of or are_alike(own, record)):
            return None
        attempt = read_attempt(path)
        degree = read_degree(path, attempt) if attempt else None
        job_id = read_slurm_job_id(path)
        is_settled = degree is not None and degree.state is DegreeState.SETTLED
        gives = is_settled and count_begun(path, attempt) >= (degree.degree if degree else 0)
    except StateError:
        # Its own runner, or the next call of csub, tells of it.
        return None
    return SisterPack(
        path,
        record,
        attempt,
        job_id,
        may_have_room=bool(degree and (degree.state is DegreeState.MEASURING or degree.room)),
        gives=gives,
        guests_of=guests_of,
    )


def find_others(state: State, pack: Path, record: PackRecord) -> Iterator[tuple[Path, str]]:
    """Open packs of other submissions whose members may start in a pack, each with its id.

    Args:
        state: The state directory.
        pack: The pack.
        record: Its pack.json.
    """
    if compute_reason_to_stay(record.policy, record.group):
        return
    apart = {pack.name, *state.list_sisters(record)}
    for name in state.list_open():
        path = state.pack_path(name)
        with contextlib.suppress(StateError, OSError):
            other = None if name in apart else state.read_pack(name)
            if other is None or explain_difference(record, other):
                continue
            if job_id := read_slurm_job_id(path):
                yield path, other.shown_id or job_id.partition("_")[0]


def count_begun(path: Path, attempt: int) -> int:
    """Members of a pack that have begun and not ended, paused ones included."""
    count = 0
    for number in inbox.list_taken(str(path)):
        if is_there(path / "members" / format_number(number) / "begun"):
            record = read_state(path, number, attempt)
            count += record is None or not record.is_final
    return count


def list_waiting_here(sister: SisterPack, attempt: int) -> list[int]:
    """The members that wait in a pack where they were planned, and have not begun.

    Those that its runner has taken have states there, under its attempts' numbers. A pack with
    fewer attempts would take one of them for its own.

    Args:
        sister: The pack.
        attempt: The attempt of the pack that asks.
    """
    pack = str(sister.path)
    numbers = inbox.list_waiting(pack) or []
    if 0 < sister.attempt <= attempt:
        numbers += [
            number
            for number in sister.record.members
            if is_there(f"{pack}/members/{format_number(number)}/taken")
        ]
    own = set(sister.record.members)
    return [number for number in numbers if number in own]


def count_waiting_in_sisters(state: State, record: PackRecord, attempt: int) -> int:
    """How many members wait in other packs of a submission that may start in this one.

    Args:
        state: The state directory.
        record: The pack that asks.
        attempt: The attempt's number there.
    """
    if not may_take_over(record):
        return 0
    names = [name for name in state.list_sisters(record) if name != record.pack_id]
    sisters = (read_sister(state, state.pack_path(name), record) for name in names)
    return sum(len(list_waiting_here(sister, attempt)) for sister in sisters if sister is not None)


FRESH_S = 5.0
"""How long an answer of Slurm counts."""

RETRY_S = 30.0

_HELD_BACK = ("JobHeld", "Dependency", "BeginTime", "JobHoldMaxRequeue", "DeadLine")
"""Beginnings of Slurm's reasons of jobs that must not start, and whose members must not either."""

_NEEDS_ITS_END = re.compile(r"(?:afterok|aftercorr|afternotok):([^?,]+)")
_WAITS = re.compile(r"[a-z]+:([^?,]+)")


@dataclass(eq=False, kw_only=True)
class EmptiedJobs:
    """What Slurm says of the other packs of a submission, and what it is told of them.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._jobs: Mapping[str, SlurmJob] = {}
        self._dependencies: list[str] | None = None
        self._asks_dependencies = self._has_asked_dependencies = False
        self._asked_at = float("-inf")
        self._to_cancel: dict[str, float] = {}

    @property
    def is_asking(self) -> bool:
        """Slurm is being asked."""
        return self._thread is not None and self._thread.is_alive()

    def work(self) -> None:
        """Have those cancelled whose time has come; never waits."""
        now = time.monotonic()
        # A thread may take one off the list at any moment.
        due = [job_id for job_id, moment in list(self._to_cancel.items()) if now >= moment]
        if due and self.pack.slurm is not None:
            self._start(lambda: self._cancel(due))

    def knows(self, sister: SisterPack) -> bool:
        """Whether it is known if members may leave a pack; otherwise `ask` has Slurm asked."""
        is_plain = bool(sister.attempt) and not sister.guests_of
        if self.pack.slurm is None or sister.job_id is None or is_plain:
            return True
        is_known = self._has_asked_dependencies or not sister.guests_of
        return is_known and time.monotonic() - self._asked_at <= FRESH_S

    def ask(self, sister: SisterPack) -> None:
        """Have Slurm asked whether members may leave a pack; never waits."""
        self._asks_dependencies = self._asks_dependencies or bool(sister.guests_of)
        self._start(self._ask)

    def may_take_from(self, sister: SisterPack) -> bool:
        """Whether members may leave a pack of which that is known.

        It waits for nothing but its turn, or it runs. From one of another submission none may where
        a job waits for its Slurm job, which would end without them.
        """
        if self.pack.slurm is None or sister.job_id is None:
            return False
        if sister.attempt and not sister.guests_of:
            return True
        if sister.guests_of and (
            self._dependencies is None
            or any(waits_for(text, sister.job_id) for text in self._dependencies)
        ):
            return False
        job = find_job_of(self._jobs, sister.job_id, sister.record.submission)
        if job is None:
            return False
        if sister.attempt:
            return job.state is SlurmJobState.RUNNING
        return job.state is SlurmJobState.PENDING and not job.reason.startswith(_HELD_BACK)

    def cancel(self, sister: SisterPack) -> None:
        """Have the job of a pack cancelled that has nothing left to run."""
        if sister.job_id is not None:
            self._to_cancel[sister.job_id] = 0.0
            self.work()

    def _start(self, action: Callable[[], None]) -> None:
        if not self.is_asking:
            self._thread = threading.Thread(target=action, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        assert self.pack.slurm is not None
        asked_at = time.monotonic()
        try:
            if self._asks_dependencies:
                self._has_asked_dependencies = True
                self._dependencies = self.pack.slurm.list_dependencies()
            self._jobs = self.pack.slurm.list_jobs()
        except SlurmError as error:
            self.pack.journal.write("not_asked", reason=str(error))
            self._jobs, self._dependencies = {}, None
        self._asked_at = asked_at

    def _cancel(self, due: list[str]) -> None:
        assert self.pack.slurm is not None
        for job_id in due:
            self._to_cancel[job_id] = time.monotonic() + RETRY_S
            try:
                if any(needs_its_end(text, job_id) for text in self.pack.slurm.list_dependencies()):
                    # It starts, finds that it is empty, and completes.
                    self.pack.journal.write(
                        "not_cancelled", job=job_id, reason="a job needs its end"
                    )
                else:
                    self.pack.slurm.cancel(job_id)
                    self.pack.journal.write("cancelled", job=job_id)
            except SlurmError as error:
                self.pack.journal.write("not_cancelled", job=job_id, reason=str(error))
            else:
                del self._to_cancel[job_id]


def needs_its_end(dependency: str, job_id: str) -> bool:
    """Whether a dependency, as squeue shows it, tells how a job must end, and not only that.

    `afterok:4711_*(unfulfilled)` means every element of the array, `afterok:4711_3` one.
    """
    return _names(_NEEDS_ITS_END, dependency, job_id)


def waits_for(dependency: str, job_id: str) -> bool:
    """Whether a dependency, as squeue shows it, names a job in any way."""
    return _names(_WAITS, dependency, job_id)


def _names(pattern: re.Pattern[str], dependency: str, job_id: str) -> bool:
    base = job_id.partition("_")[0]
    for targets in pattern.findall(dependency):
        for target in targets.split(":"):
            name = target.partition("(")[0].partition("+")[0]
            if name in (job_id, base, f"{base}_*"):
                return True
    return False


def empty_job(state: State, sister: SisterPack, taker: str) -> bool:
    """Close all packs of a Slurm job that has nothing left; False while one of its GPU sets has.

    Args:
        state: The state directory.
        sister: One of its packs, whose lock is held.
        taker: The pack that has taken its members.
    """
    paths = [state.pack_path(name) for name in list_gpu_set_packs(sister.record)]
    others = [path for path in paths if path != sister.path and path.is_dir()]
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(hold_lock(path / "lock", 0)) for path in others):
            return False
        if any(has_left_to_run(path) for path in (sister.path, *others)):
            return False
        return all(empty_pack(path, taker) for path in (sister.path, *others))


LEAVE_S = 5.0
"""How long the others have to take what a set leaves to them; each looks once a second."""


BEGIN_S = 60.0
"""How long a set may take to begin after this one; its runner may have failed before that."""


@dataclass(frozen=True)
class JobSet:
    """Another set of the same job, as its files show it.

    Attributes:
        pack: Its pack.
        is_out: Nothing starts in it any more: its GPUs cannot be used, or its runner is gone.
        begun: How many of its members have begun and not ended.
        waiting: Those that may be taken from it.
    """

    pack: SisterPack
    is_out: bool
    begun: int
    waiting: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class JobSets:
    """Looks at the other sets of a pack's job.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        names = list_gpu_set_packs(self.pack.record)
        self.others = [
            self.pack.state.pack_path(name) for name in names if name != self.pack.record.pack_id
        ]
        """Their packs; none where the job has one set."""
        self._begun_at = self.pack.clock()
        self._left: set[int] = set()
        self._left_at = float("-inf")
        self._is_idle = True
        self.note_busy()

    # -- what may come ------------------------------------------------------------------------

    def find_sources(self) -> list[JobSet]:
        """Sets whose waiting members would start sooner here; the one with most of them first."""
        found = [self._look(path) for path in self.others]
        sources = [each for each in found if each is not None and self._is_sooner_here(each)]
        return sorted(sources, key=lambda each: (not each.is_out, -len(each.waiting)))

    def _is_sooner_here(self, other: JobSet) -> bool:
        """Whether a place here is better for a member that waits there.

        That set fills its own places. One member that would leave it with no more than are here
        starts here: so the first ones, too, are spread over all sets.
        """
        if not other.waiting:
            return False
        if other.is_out or other.begun >= self._find_places(other.pack):
            return True
        return self.count_sooner(other.pack.record, other.begun, len(other.waiting)) > 0

    def count_sooner(self, other: PackRecord, begun: int, waiting: int) -> int:
        """How many may come from a set that runs, and leave it with no fewer a GPU than are here.

        Args:
            other: Its pack.json.
            begun: How many of its members have begun and not ended.
            waiting: How many wait in it.
        """
        own_gpus, gpus = _count_gpus(self.pack.record), _count_gpus(other)
        here, there = len(self.pack.members.with_process()), begun + waiting
        # Of n that come: (here + n) / own_gpus <= (there - n) / gpus.
        return min(waiting, max(0, (there * own_gpus - here * gpus) // (own_gpus + gpus)))

    @staticmethod
    def _find_places(other: SisterPack) -> int:
        degree = None
        with contextlib.suppress(StateError):
            degree = read_degree(other.path, other.attempt)
        if degree is None or degree.state is not DegreeState.SETTLED:
            return other.record.degree
        return min(other.record.degree, degree.degree)

    def _look(self, path: Path) -> JobSet | None:
        """Read another set; None where nothing waits in it, or it cannot be read."""
        try:
            # First, because it is looked for once a second: mostly nothing is there.
            waiting = _list_waiting(path)
            if not waiting or not is_there(self.pack.state.open / path.name):
                return None
            record = self.pack.state.read_pack(path.name)
            attempt = read_attempt(path)
            if record is None or attempt > self.pack.attempt or read_ended(path) is not None:
                return None
            is_out = self._is_out(path, attempt)
            waiting = _choose_movable(waiting, record, is_out=is_out)
            pack = SisterPack(path, record, attempt, read_slurm_job_id(path))
            begun = count_begun(path, attempt) if waiting and not is_out else 0
        except (OSError, StateError):
            # Its own runner, or the next call of csub, tells of it.
            return None
        return JobSet(pack, is_out, begun, waiting)

    # -- what is left to the others -----------------------------------------------------------

    def leave(self, numbers: Sequence[int]) -> bool:
        """Leave waiting members to the other sets; False where none of these can take any.

        Args:
            numbers: The members; none of them starts here any more.

        Raises:
            OSError: One could not be set free.
        """
        if not any(self._may_take(path) for path in self.others):
            return False
        for number in numbers:
            if number not in self._left:
                inbox.set_free(str(self.pack.path), number)
                self._left.add(number)
                self._left_at = self.pack.clock()
        return True

    def _may_take(self, path: Path) -> bool:
        """Whether another set may take members: it is there, and its GPUs can be used."""
        if not path.is_dir() or inbox.list_waiting(str(path)) is None:
            return False
        attempt = read_attempt(path)
        with contextlib.suppress(StateError):
            return not self._is_out(path, attempt)
        return True

    def _is_out(self, path: Path, attempt: int) -> bool:
        """Whether nothing starts in a set any more: by its setup, or because its runner is gone."""
        if not attempt:
            return was_killed(path, self.pack.allocation.restarts)
        setup = read_setup(path)
        is_refused = setup is not None and setup.attempt == attempt and not setup.mode
        return (is_refused and bool(setup and setup.reason)) or not self._has_runner(path)

    def _has_runner(self, path: Path) -> bool:
        if was_killed(path, self.pack.allocation.restarts):
            return False
        runner = read_runner(path)
        return runner is not None and is_alive(ProcessId(runner.pid, runner.start_ticks))

    # -- the end ------------------------------------------------------------------------------

    def note_busy(self) -> None:
        """A member runs here, or is about to."""
        if self._is_idle and self.others:
            self._is_idle = False
            forget_idle(self.pack.path)

    def note_idle(self) -> None:
        """Nothing runs here, and nothing waits that may start: the others need not wait for it."""
        if self.others and not self._is_idle and self._has_waited():
            mark_idle(self.pack.path)
            self._is_idle = True

    def _has_waited(self) -> bool:
        """The others have had their time to take what was left to them."""
        return self.pack.clock() >= self._left_at + LEAVE_S

    def may_close(self) -> bool:
        """Whether the pack may end: nothing can come from the others any more.

        Called while nothing runs here and nothing waits that may start.
        """
        if not self.others:
            return True
        if not self._has_waited():
            return False
        return not any(self._is_busy(path) for path in self.others)

    def _is_busy(self, path: Path) -> bool:
        """Whether members of another set may yet start again, or need another place."""
        if is_idle(path) or inbox.list_waiting(str(path)) is None:
            return False
        if was_killed(path, self.pack.allocation.restarts):
            return False
        if not read_attempt(path):
            return self.pack.clock() < self._begun_at + BEGIN_S
        return self._has_runner(path)


def _list_waiting(path: Path) -> tuple[int, ...]:
    """Members of another set that have not begun, or that it has set free again."""
    pack = str(path)
    taken = (
        number
        for number in list_claimed(path)
        if is_there(f"{pack}/members/{format_number(number)}/taken")
    )
    return (*(inbox.list_waiting(pack) or ()), *taken)


def _choose_movable(waiting: Sequence[int], record: PackRecord, *, is_out: bool) -> tuple[int, ...]:
    """Those that may come from another set.

    One that has come there from elsewhere goes on only from a set that is out: such a set takes
    none again, so that no member comes back to where it was.

    Args:
        waiting: Those that wait there.
        record: Its pack.json.
        is_out: Nothing starts there any more.
    """
    own = set(record.members)
    return tuple(n for n in waiting if n in own or (is_out and not is_guest(n)))


def _count_gpus(record: PackRecord) -> int:
    return max(1, 1 if record.request is None else record.request.gpus)
