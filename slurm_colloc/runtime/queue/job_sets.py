"""The other GPU sets of a pack's Slurm job: whose waiting members start sooner here.

All sets of a job have one queue in effect: a place that is free here is as good as one there. So it
is not only measured room that counts, as between Slurm jobs, but any place in which an own member
would start now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.host.system.node_processes import ProcessId, is_alive
from slurm_colloc.model.degree.measured_curve import DegreeState
from slurm_colloc.model.member import is_guest
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.runtime.queue.sister_packs import SisterPack, count_begun
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.degree_record import read_degree
from slurm_colloc.store.pack.idle_set import forget_idle, is_idle, mark_idle
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack.node_setup import read_setup
from slurm_colloc.store.pack.pack_directory import list_claimed, read_ended, read_slurm_job_id
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack.runner_kills import read_kill, was_killed
from slurm_colloc.store.pack.runner_process import read_runner
from slurm_colloc.store.pack_reading import list_gpu_set_packs, list_node_packs

LEAVE_S = 5.0
"""How long the others have to take what a set leaves to them; each looks once a second."""


BEGIN_S = 60.0
"""How long a set may take to begin after this one; its runner may have failed before that."""

LEFT_S = 60.0
"""How long the members of a node that has left the job may take to be set free."""


@dataclasses.dataclass(frozen=True)
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


class JobSets:
    """Looks at the other sets of a pack's job.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        attempt: The attempt's number.
        state: The state directory.
        members: Its members and places.
        restarts: How often Slurm has restarted the job.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        pack: Path,
        record: PackRecord,
        attempt: int,
        state: State,
        members: PackMembers,
        *,
        restarts: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pack = pack
        self._record = record
        self._attempt = attempt
        self._state = state
        self._members = members
        names = list_gpu_set_packs(record)
        self.others = [state.pack_path(name) for name in names if name != record.pack_id]
        """Their packs; none where the job has one set."""
        self._restarts = restarts
        self._on_node = frozenset(list_node_packs(record, record.node))
        self._clock = clock
        self._begun_at = clock()
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
        own_gpus, gpus = _count_gpus(self._record), _count_gpus(other)
        here, there = len(self._members.with_process()), begun + waiting
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
            if not waiting or not is_there(self._state.open / path.name):
                return None
            record = self._state.read_pack(path.name)
            attempt = read_attempt(path)
            if record is None or attempt > self._attempt or read_ended(path) is not None:
                return None
            is_out = self._is_out(path, attempt)
            waiting = _choose_movable(waiting, record, is_out=is_out)
            pack = SisterPack(path, record, attempt, read_slurm_job_id(path))
            begun = count_begun(pack) if waiting and not is_out else 0
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
                inbox.set_free(str(self._pack), number)
                self._left.add(number)
                self._left_at = self._clock()
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
            return was_killed(path, self._restarts)
        setup = read_setup(path)
        is_refused = setup is not None and setup.attempt == attempt and not setup.mode
        return (is_refused and bool(setup and setup.reason)) or not self._has_runner(path)

    def _has_runner(self, path: Path) -> bool:
        if was_killed(path, self._restarts):
            return False
        if path.name not in self._on_node:
            # Its guard tells, or that of the first node.
            return True
        runner = read_runner(path)
        return runner is not None and is_alive(ProcessId(runner.pid, runner.start_ticks))

    # -- the end ------------------------------------------------------------------------------

    def note_busy(self) -> None:
        """A member runs here, or is about to."""
        if self._is_idle and self.others:
            self._is_idle = False
            forget_idle(self._pack)

    def may_close(self) -> bool:
        """Whether the pack may end: nothing can come from the others any more.

        Called while nothing runs here and nothing waits that may start.
        """
        if not self.others:
            return True
        if self._clock() < self._left_at + LEAVE_S:
            return False
        if not self._is_idle:
            mark_idle(self._pack)
            self._is_idle = True
        return not any(self._is_busy(path) for path in self.others)

    def _is_busy(self, path: Path) -> bool:
        """Whether members of another set may yet start again, or need another place."""
        if is_idle(path) or inbox.list_waiting(str(path)) is None:
            return False
        if was_killed(path, self._restarts):
            return self._is_being_left(path)
        if not read_attempt(path):
            return self._clock() < self._begun_at + BEGIN_S
        return self._has_runner(path)

    def _is_being_left(self, path: Path) -> bool:
        """Whether members of a node that has left the job are about to be set free."""
        with contextlib.suppress(StateError):
            kill = read_kill(path, self._restarts)
            if kill is not None and kill.node and time.time() < kill.at + LEFT_S:
                record = self._state.read_pack(path.name)
                pack = (
                    None if record is None else SisterPack(path, record, read_attempt(path), None)
                )
                return pack is not None and count_begun(pack) > 0
        return False


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
