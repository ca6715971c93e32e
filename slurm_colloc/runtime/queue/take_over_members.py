"""Filling free places with members that wait in other packs of the user: sisters first.

A member comes where there is room for it, whatever it runs: from a pack that has not begun, which
packs that have room share, or from one that runs and has found out that it cannot run more. A GPU
set that others of its Slurm job keep also takes from a set of another job that runs, until both
have as many.
Other submissions asked Slurm for the same, and both have allowed it (planning.join.same_kind). See
store.pack.take_over for how a member moves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_colloc.model.member import MemberId, is_guest
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.arriving_members import ArrivingMembers, keep_both_open
from slurm_colloc.runtime.queue.emptied_jobs import EmptiedJobs, empty_job
from slurm_colloc.runtime.queue.fill_places import MemberIntake
from slurm_colloc.runtime.queue.fitting_members import FittingMembers
from slurm_colloc.runtime.queue.job_sets import JobSets
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.sister_packs import (
    SisterPack,
    count_begun,
    find_others,
    list_waiting_here,
    may_take_over,
    read_sister,
)
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.runtime.queue.waiting_facts import WaitingFacts
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.pack import inbox, take_over
from slurm_colloc.store.pack.emptied_pack import (
    read_emptied,
)
from slurm_colloc.store.pack.member_home import (
    HomeRecord,
    choose_guest_number,
    find_guest,
    write_home,
)
from slurm_colloc.store.pack.pack_records import PackRecord

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
        job_sets: The other GPU sets of its Slurm job.
        jobs: Knows what Slurm says of the other packs, and cancels those that were emptied.
        journal: The pack's log.
        check_fence: Raises where a newer attempt has begun.
        find_room: How many more may start now, by what was measured.
        describe_wait: Why a member would wait here although it has a place; empty for nothing.
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
        job_sets: JobSets,
        jobs: EmptiedJobs,
        journal: Journal,
        check_fence: Callable[[], None],
        find_room: Callable[[], int] = lambda: 0,
        describe_wait: Callable[[Member], str] = lambda _: "",
    ) -> None:
        self._pack = pack
        self._shown_id = shown_id
        self._record = record
        self._attempt = attempt
        self._state = state
        self._members = members
        self._fitting = FittingMembers(record, members, time_left)
        self._waiting = waiting
        self._is_refused = is_refused
        self._intake = intake
        self._job_sets = job_sets
        self._jobs = jobs
        self._journal = journal
        self._check_fence = check_fence
        self._find_room = find_room
        self._describe_wait = describe_wait
        self._arriving = ArrivingMembers(pack, record, state, intake, journal)
        self._taken: dict[str, int] = {}
        self._guests = 0
        self._look_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Members are on their way here, or Slurm is asked whether some may come."""
        return self._arriving.has_any or self._jobs.is_asking

    def find_elsewhere(self, number: int) -> tuple[Path, int] | None:
        """Where a member is that has left this pack: in which other one, and its number there."""
        if is_guest(number):
            # One that has come moves no more.
            return None
        for path in self._arriving.list_sisters():
            if is_there(path / "members" / inbox.format_number(number)):
                return path, number
        for name in self._state.list_takers(self._shown_id):
            path = self._state.pack_path(name)
            there = find_guest(path, MemberId(self._shown_id, number))
            if there is not None:
                return path, there
        return None

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
        self._arriving.look_back()
        self._arriving.fetch()
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + LOOK_EVERY_S
        self._forget_gone()
        self._jobs.work()
        if self._job_sets.others and self._take_from_job():
            # The next one as soon as this one has started.
            self._look_at = now
            return
        room = self._count_room()
        if room > 0:
            self._take(room)
            self._arriving.fetch()

    # -- what may come ------------------------------------------------------------------------

    def _forget_gone(self) -> None:
        """Forget members of this pack that wait in another one by now."""
        if not may_take_over(self._record) and not self._job_sets.others:
            return
        for number in list(self._members.waiting)[:LOOKED_AT]:
            member = self._members.by_number[number]
            has_begun = member.record.starts and not self._is_refused()
            if not has_begun and not inbox.is_taken(str(self._pack), number):
                self._intake.forget(member)

    def _count_places(self) -> int:
        """How many places are free for members of others; own ones go first."""
        free = sum(place.occupant is None for place in self._members.places)
        is_full = self._members.takes_one and bool(self._members.running())
        if not free or is_full or self._is_refused():
            return 0
        return 0 if self._waiting.list_next() else free

    def _count_room(self) -> int:
        """How many members of other Slurm jobs may start here now."""
        if not may_take_over(self._record):
            return 0
        places = self._count_places()
        return min(places, max(self._find_room(), self._count_planned())) if places else 0

    def _count_planned(self) -> int:
        """How many may start unmeasured: as many as were planned, where others keep this GPU.

        A pack of one GPU ends where it has nothing to do, and gives its GPU to the next one. Here
        the next one waits for all GPU sets of the job.
        """
        policy = self._record.policy
        # In the first turn its own are not taken in yet.
        if not self._job_sets.others or policy is None or inbox.list_waiting(str(self._pack)):
            return 0
        return max(0, policy.degree - len(self._members.running()))

    def _count_sooner(self, sister: SisterPack, waiting: Sequence[int]) -> int:
        """How many start here sooner than in a sister that runs and may yet start them itself."""
        planned = self._count_planned()
        if not planned or not waiting or sister.guests_of:
            return 0
        begun = count_begun(sister)
        return min(planned, self._job_sets.count_sooner(sister.record, begun, len(waiting)))

    def _take_from_job(self) -> bool:
        """Take one that starts here sooner than in its set of the same job; False for none."""
        # In the first turn its own are not taken in yet.
        if inbox.list_waiting(str(self._pack)) or not self._count_places():
            return False
        return any(
            self._take_from(
                source.pack, source.waiting, 1, may_have_run=True, describe_wait=self._describe_wait
            )
            for source in self._job_sets.find_sources()
        )

    def _take(self, room: int) -> None:
        found = [
            read_sister(self._state, path, self._record)
            for path in self._arriving.list_sisters()
            if path not in self._job_sets.others
        ]
        found += [
            read_sister(self._state, path, self._record, job_id)
            for path, job_id in find_others(self._state, self._pack, self._record)
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
                most = min(room, self._count_sooner(sister, waiting))
            if sister.guests_of and is_asking:
                # Those of its own submission go first.
                return
            if waiting and not self._jobs.knows(sister):
                is_asking = True
                continue
            if waiting and not self._jobs.may_take_from(sister):
                continue
            room -= self._take_from(sister, waiting, most, describe_wait=self._describe_wait)

    def _take_from(
        self,
        sister: SisterPack,
        waiting: Sequence[int],
        most: int,
        *,
        may_have_run: bool = False,
        describe_wait: Callable[[Member], str] = lambda _: "",
    ) -> int:
        """Take up to so many of those that wait in another pack; how many that were.

        Args:
            sister: The pack.
            waiting: Their numbers there.
            most: How many.
            may_have_run: Those may come that have run there.
            describe_wait: Why a member would wait here all the same; empty for nothing.
        """
        count = 0
        with keep_both_open(self._state, self._pack, sister.path, sister.attempt) as may:
            if not may:
                return 0
            fits = self._fitting.choose(sister, waiting, may_have_run=may_have_run)
            for number in (member.number for member in fits if not describe_wait(member)):
                if count >= most:
                    break
                self._check_fence()
                there = self._number_here(sister, number)
                if there is None:
                    break
                if take_over.decide(str(sister.path), str(self._pack), number, there):
                    self._arriving.expect(sister.path, number, there)
                    count += 1
            self._taken[sister.name] = self._taken.get(sister.name, 0) + count
            self._arriving.fetch()
            if self._may_be_empty(sister) and empty_job(self._state, sister, self._pack.name):
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
            # Before it goes: a reader is to find it, wherever it is.
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
            self._fitting.settle_plan(sister, number)
        return there

    def _may_be_empty(self, sister: SisterPack) -> bool:
        is_mine = not sister.attempt and self._taken[sister.name] > 0
        is_in_job = sister.path in self._job_sets.others
        return is_mine and not is_in_job and not read_emptied(sister.path)
