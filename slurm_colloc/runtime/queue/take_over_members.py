"""Filling free places with members that wait in other packs: sisters first, then packs of its kind.

How many fit is measured; by default that is none. A member comes from a pack that has not begun,
which packs that have room share, or from one that runs and has found out that it cannot run more.
One of another submission runs the same script, and both submissions have allowed it
(planning.join.same_kind). See store.pack.take_over for how it moves.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberId, is_guest
from slurm_colloc.planning.join.same_kind import compute_reason_to_stay
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.emptied_jobs import EmptiedJobs
from slurm_colloc.runtime.queue.fill_places import MemberIntake
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.runtime.queue.sister_packs import (
    SisterPack,
    explain_difference,
    list_waiting_here,
    may_take_over,
    read_sister,
)
from slurm_colloc.runtime.queue.time_left import END_MARGIN_S, TimeLeft
from slurm_colloc.runtime.queue.waiting_facts import WaitingFacts
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack import inbox, take_over
from slurm_colloc.store.pack.emptied_pack import empty_pack, is_being_cancelled, read_emptied
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.member_home import (
    HomeRecord,
    choose_guest_number,
    find_guest,
    read_home,
    write_home,
)
from slurm_colloc.store.pack.member_states import read_attempt, read_state
from slurm_colloc.store.pack.pack_directory import (
    read_common_script,
    read_ended,
    read_moved,
    read_slurm_job_id,
    read_spec,
)
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack.runner_requests import (
    hand_on_requests,
    is_cancel_asked,
    list_dependents,
)

LOOK_EVERY_S = 1.0

LOOKED_AT = 64
"""Waiting members of its own that a pack looks for at each look; the others it finds gone as their
turn comes."""


class MemberTakeOver:
    """Takes waiting members over from other packs of the user.

    Args:
        pack: The pack's directory.
        shown_id: The id that its own members are named after.
        record: Its pack.json.
        attempt: The attempt's number.
        state: The state directory.
        members: Its members and places.
        time_left: What is left of its time.
        waiting: Knows which of its own members are next.
        is_refused: Whether no member may start here at all.
        intake: Takes in what has come.
        jobs: Knows what Slurm says of the other packs, and cancels those that were emptied.
        journal: The pack's log.
        check_fence: Raises where a newer attempt has begun.
        find_room: How many more may start now, by what was measured.
    """

    def __init__(
        self,
        *,
        pack: Path,
        shown_id: str,
        record: PackRecord,
        attempt: int,
        state: State,
        members: PackMembers,
        time_left: TimeLeft,
        waiting: WaitingFacts,
        is_refused: Callable[[], bool],
        intake: MemberIntake,
        jobs: EmptiedJobs,
        journal: Journal,
        check_fence: Callable[[], None],
        find_room: Callable[[], int] = lambda: 0,
    ) -> None:
        self._pack = pack
        self._shown_id = shown_id
        self._record = record
        self._attempt = attempt
        self._state = state
        self._members = members
        self._time_left = time_left
        self._waiting = waiting
        self._is_refused = is_refused
        self._intake = intake
        self._jobs = jobs
        self._journal = journal
        self._check_fence = check_fence
        self._find_room = find_room
        self._decided: dict[tuple[Path, int], int] = {}
        self._taken: dict[str, int] = {}
        self._guests = 0
        self._apart: set[str] = set()
        self._has_looked_back = False
        self._look_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Members are on their way here, or Slurm is asked whether some may come."""
        return bool(self._decided) or self._jobs.is_asking

    def find_elsewhere(self, number: int) -> tuple[Path, int] | None:
        """Where a member is that has left this pack: in which other one, and its number there."""
        if is_guest(number):
            # One that has come moves no more.
            return None
        for path in self._list_sisters():
            if is_there(path / "members" / inbox.format_number(number)):
                return path, number
        for name in self._state.list_takers(self._shown_id):
            path = self._state.pack_path(name)
            there = find_guest(path, MemberId(self._shown_id, number))
            if there is not None:
                return path, there
        return None

    def _list_sisters(self) -> list[Path]:
        """The other packs of the submission that are there."""
        ids = self._state.list_sisters(self._record)
        paths = (self._state.pack_path(each) for each in ids if each != self._record.pack_id)
        return [path for path in paths if path.is_dir()]

    def _list_sources(self) -> list[Path]:
        """The packs that members may be on their way from to this one."""
        ids = self._state.list_sources(self._record.pack_id)
        return [*self._list_sisters(), *map(self._state.pack_path, ids)]

    def work(self, *, at_once: bool = False) -> None:
        """Fetch what was decided, and take over what fits.

        Args:
            at_once: Do not wait for the next look.

        Raises:
            OSError: The file system fails; what was decided is fetched at the next call.
            StateError: Likewise.
        """
        if self._record.local or self._record.carried or self._record.request is None:
            return
        self._look_back()
        self._fetch()
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + LOOK_EVERY_S
        self._forget_gone()
        self._jobs.work()
        room = self._count_room()
        if room > 0:
            self._take(room)
            self._fetch()

    # -- what has come ------------------------------------------------------------------------

    def _look_back(self) -> None:
        """Once: what an earlier attempt has decided, wherever it was interrupted."""
        if self._has_looked_back:
            return
        for source in self._list_sources():
            for number, taking in take_over.list_leaving(str(source)).items():
                if taking.taker == self._pack.name:
                    self._decided[source, number] = taking.number
        for there in take_over.list_arrived(str(self._pack)):
            self._decided[self._find_home(there)] = there
        self._intake.adopt_taken()
        self._has_looked_back = True

    def _find_home(self, there: int) -> tuple[Path, int]:
        """The pack that a member here was planned for, and its number there."""
        home = read_home(self._pack, there)
        if home is not None:
            return self._state.pack_path(home.pack_id), home.number
        for source in self._list_sisters():
            record = self._state.read_pack(source.name)
            if record is not None and there in record.members:
                return source, there
        return self._pack, there

    def _fetch(self) -> None:
        for (source, number), there in list(self._decided.items()):
            if not take_over.move(str(source), str(self._pack), number, there):
                # It was cancelled, or given back.
                if not is_there(source / "members" / inbox.format_number(number)):
                    del self._decided[source, number]
                continue
            if source != self._pack and source.is_dir():
                hand_on_requests(source, number, self._pack, there)
            if take_over.accept(str(self._pack), there):
                self._intake.adopt(there)
                self._journal.write("took_over", member=there, source=source.name)
            del self._decided[source, number]

    def _forget_gone(self) -> None:
        """Forget members of this pack that wait in another one by now."""
        if not may_take_over(self._record):
            return
        for number in list(self._members.waiting)[:LOOKED_AT]:
            member = self._members.by_number[number]
            if not member.record.starts and not inbox.is_taken(str(self._pack), number):
                self._intake.forget(member)

    # -- what may come ------------------------------------------------------------------------

    def _count_room(self) -> int:
        """How many members of others may start here now; own ones go first."""
        free = sum(place.occupant is None for place in self._members.places)
        is_full = self._members.takes_one and bool(self._members.running())
        if not free or is_full or self._is_refused() or not may_take_over(self._record):
            return 0
        return 0 if self._waiting.list_next() else min(free, self._find_room())

    def _take(self, room: int) -> None:
        found = [read_sister(self._state, path, self._record) for path in self._list_sisters()]
        found += [
            read_sister(self._state, path, self._record, job_id)
            for path, job_id in self._list_alike()
        ]
        sisters = [sister for sister in found if sister is not None]
        takers = 1 + sum(sister.may_have_room for sister in sisters)
        is_asking = False
        for sister in sisters:
            if room <= 0:
                return
            waiting = list_waiting_here(sister, self._attempt)
            if not waiting and not self._taken.get(sister.name):
                continue
            most = room
            if not sister.attempt:
                taken = self._taken.get(sister.name, 0)
                share = math.ceil((len(waiting) + taken) / takers) - taken
                most = min(room, share)
            elif not sister.gives:
                continue
            if sister.guests_of and is_asking:
                # Those of its own submission go first.
                return
            if waiting and not self._jobs.knows(sister):
                is_asking = True
                continue
            if waiting and not self._jobs.may_take_from(sister):
                continue
            room -= self._take_from(sister, waiting, most)

    def _list_alike(self) -> list[tuple[Path, str]]:
        """Open packs of other submissions whose members may start here, each with its id."""
        if compute_reason_to_stay(self._record.policy, self._record.group):
            return []
        apart = self._apart | {self._pack.name, *self._state.list_sisters(self._record)}
        script: bytes | None = None
        found = []
        for name in self._state.list_open():
            path = self._state.pack_path(name)
            with contextlib.suppress(StateError, OSError):
                record = None if name in apart else self._state.read_pack(name)
                if record is None or not (job_id := read_slurm_job_id(path) or ""):
                    continue
                script = script or read_common_script(self._pack, self._record)
                if script is None:
                    return []
                # None of that changes any more.
                if read_common_script(path, record) != script:
                    self._apart.add(name)
                elif reason := explain_difference(self._record, record):
                    self._apart.add(name)
                    self._journal.write("not_alike", pack=name, job=job_id, reason=reason)
                else:
                    found.append((path, record.shown_id or job_id.partition("_")[0]))
        return found

    def _take_from(self, sister: SisterPack, waiting: list[int], most: int) -> int:
        """Take up to so many of those that wait in another pack; how many that were."""
        count = 0
        with self._both_open(sister) as may:
            if not may:
                return 0
            fits = self._choose(sister, waiting)
            for number in fits:
                if count >= most:
                    break
                self._check_fence()
                there = self._number_here(sister, number)
                if there is None:
                    break
                if take_over.decide(str(sister.path), str(self._pack), number, there):
                    self._decided[sister.path, number] = there
                    count += 1
            self._taken[sister.name] = self._taken.get(sister.name, 0) + count
            self._fetch()
            if self._may_be_empty(sister) and empty_pack(sister.path, self._pack.name):
                self._journal.write("emptied", pack=sister.name)
                self._jobs.cancel(sister)
        return count

    def _number_here(self, sister: SisterPack, number: int) -> int | None:
        """The number that a member will have here; None where there is none left."""
        if not sister.guests_of:
            return number
        there = choose_guest_number(self._attempt, self._guests)
        if there is not None:
            self._guests += 1
            # Before it goes: whoever looks for it is to find it, wherever it is.
            self._state.note_taker(sister.name, sister.guests_of, self._pack.name)
            home = HomeRecord(
                job=sister.guests_of,
                number=number,
                pack_id=sister.name,
                created_at=sister.record.created_at,
                submit_directory=sister.record.submit_directory,
                submit_host=sister.record.submit_host,
            )
            write_home(sister.path, number, home)
        return there

    def _may_be_empty(self, sister: SisterPack) -> bool:
        is_mine = not sister.attempt and self._taken[sister.name] > 0
        return is_mine and not read_emptied(sister.path)

    @contextlib.contextmanager
    def _both_open(self, sister: SisterPack) -> Iterator[bool]:
        """Keep csub from settling either pack; False where it does so, or has done it.

        A pack of which it is told that no csub looks at it any more neither gives nor takes.
        """
        with (
            hold_lock(self._pack / "lock", 0) as own,
            hold_lock(sister.path / "lock", 0) as other,
        ):
            yield bool(own and other) and (
                all(is_there(self._state.open / p.name) for p in (self._pack, sister.path))
                and read_ended(self._pack) is None
                and read_ended(sister.path) is None
                and read_attempt(sister.path) == sister.attempt
                and not is_being_cancelled(sister.path)
                and not is_being_cancelled(self._pack)
            )

    def _choose(self, sister: SisterPack, waiting: list[int]) -> Iterator[int]:
        """Those of them that could start here now, each counted into what is left."""
        free = sorted(place.wanted for place in self._members.places if place.occupant is None)
        left_mb = self._find_host_memory_left_mb()
        asked_for = {n for d in list_dependents(sister.path) for _, n in d.conditions}
        for number in waiting:
            is_known = not sister.guests_of and number in self._members.by_number
            if number in asked_for or is_known:
                continue
            try:
                spec = read_spec(sister.path, number)
                record = read_state(sister.path, number, sister.attempt)
                is_kept = is_held(sister.path, number) or bool(read_moved(sister.path, number))
            except StateError:
                # It is told of where it is taken in.
                continue
            needed_mb = spec.plan.host_memory_mb
            place = next((wanted for wanted in free if wanted >= spec.plan.cpus), None)
            if (
                place is None
                or is_kept
                or spec.job.depends
                or (record is not None and (record.starts or record.is_final))
                or (left_mb is not None and (needed_mb is None or needed_mb > left_mb))
                or not self._has_time(spec.job.time_limit_s)
                or is_cancel_asked([(sister.path, number)])
            ):
                continue
            free.remove(place)
            if left_mb is not None and needed_mb is not None:
                left_mb -= needed_mb
            yield number

    def _has_time(self, wanted_s: int | None) -> bool:
        left_s = self._time_left.left_s
        if left_s is None:
            return True
        return wanted_s is not None and wanted_s + END_MARGIN_S <= left_s

    def _find_host_memory_left_mb(self) -> int | None:
        """What members that have not ended leave; None where the pack asked for no amount."""
        assert self._record.request is not None
        total_mb = self._record.request.host_memory_mb
        if total_mb is None:
            return None
        members = self._members.by_number.values()
        return total_mb - sum(m.spec.plan.host_memory_mb or 0 for m in members if not m.is_final)
