"""Filling free places with members that wait in other packs of the user: sisters first.

A member comes where there is room for it, whatever it runs: from a pack that has not begun, which
packs that have room share, or from one that runs and has found out that it cannot run more. A GPU
set that others of its Slurm job keep also takes from a set of another job that runs, until both
have as many.
Other submissions asked Slurm for the same, and both have allowed it (planning.same_kind). See
store.inbox for how a member moves.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import MemberId, MemberState, is_guest
from slurm_colloc.planning.arrange import (
    ON_THE_GPU,
    View,
    count_room,
    find_front,
    find_wait,
)
from slurm_colloc.planning.job_needs import choose_bound
from slurm_colloc.runtime.fill_places import MemberIntake
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.look import PackLook
from slurm_colloc.runtime.members import Member, PackMembers
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft, count_host_memory_left_mb
from slurm_colloc.runtime.sister_packs import (
    EmptiedJobs,
    JobSets,
    SisterPack,
    count_begun,
    empty_job,
    find_others,
    list_waiting_here,
    may_take_over,
    read_sister,
)
from slurm_colloc.runtime.stop_member import AttemptFence
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock, is_there
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    HomeRecord,
    StateRecord,
    choose_guest_number,
    find_guest,
    is_being_cancelled,
    is_held,
    read_attempt,
    read_emptied,
    read_home,
    read_state,
    write_home,
)
from slurm_colloc.store.pack_directory import (
    MemberSpec,
    read_ended,
    read_moved,
    read_spec,
    write_spec,
)
from slurm_colloc.store.runner_requests import (
    hand_on_requests,
    is_cancel_asked,
    list_dependents,
)

LOOK_EVERY_S = 1.0

LOOKED_AT = 64
"""Waiting members of its own that a pack looks for at each look; the others it finds gone as their
turn comes."""


@dataclass(eq=False, kw_only=True)
class MemberTakeOver:
    """Takes waiting members over from other packs of the user.

    Attributes:
        pack: The attempt of the pack.
        time_left: What is left of its time.
        look: Looks at the pack.
        gpu_mode: Whether no member may start here at all.
        memory: What members need of the GPU's memory.
        intake: Takes in what has come.
        job_sets: The other GPU sets of its Slurm job.
        jobs: Knows what Slurm says of the other packs, and cancels those that were emptied.
        fence: Raises where a newer attempt has begun.
    """

    pack: PackContext
    time_left: TimeLeft
    look: PackLook
    gpu_mode: GpuMode
    memory: GpuMemoryRoom
    intake: MemberIntake
    job_sets: JobSets
    jobs: EmptiedJobs
    fence: AttemptFence

    def __post_init__(self) -> None:
        self._decided: dict[tuple[Path, int], int] = {}
        """Who is on the way here, decided in this attempt or earlier, and its number here."""
        self._has_looked_back = False
        self._taken: dict[str, int] = {}
        self._guests = 0
        self._look_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Members are on their way here, or Slurm is asked whether some may come."""
        return bool(self._decided) or self.jobs.is_asking

    def find_elsewhere(self, number: int) -> tuple[Path, int] | None:
        """Where a member is that has left this pack: in which other one, and its number there."""
        if is_guest(number):
            # One that has come moves no more.
            return None
        for path in self._list_sisters():
            if is_there(path / "members" / inbox.format_number(number)):
                return path, number
        for name in self.pack.state.list_takers(self.pack.shown_id):
            path = self.pack.state.pack_path(name)
            there = find_guest(path, MemberId(self.pack.shown_id, number))
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
        if self.pack.record.local or self.pack.record.request is None:
            return
        self._look_back()
        self._fetch()
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + LOOK_EVERY_S
        self._forget_gone()
        self.jobs.work()
        if self.job_sets.others and self._take_from_job():
            # The next one as soon as this one has started.
            self._look_at = now
            return
        room = self._count_room()
        if room > 0:
            self._take(room)
            self._fetch()

    # -- what may come ------------------------------------------------------------------------

    def _forget_gone(self) -> None:
        """Forget members of this pack that wait in another one by now."""
        if not may_take_over(self.pack.record) and not self.job_sets.others:
            return
        for number in list(self.pack.members.waiting)[:LOOKED_AT]:
            member = self.pack.members.by_number[number]
            has_begun = member.record.starts and not self.gpu_mode.refusal
            if not has_begun and not inbox.is_taken(str(self.pack.path), number):
                self.intake.forget(member)

    def _count_places(self, view: View) -> int:
        """How many places are free for members of others; own ones go first.

        Args:
            view: The pack.
        """
        free = view.places - len(view.present)
        is_full = view.takes_one and bool(view.running)
        if not free or is_full or self.gpu_mode.refusal:
            return 0
        return 0 if find_front(view) else free

    def _count_room(self) -> int:
        """How many members of other Slurm jobs may start here now."""
        if not may_take_over(self.pack.record):
            return 0
        view = self.look.look()
        places = self._count_places(view)
        return min(places, max(self.find_room(view), self._count_planned())) if places else 0

    def find_room(self, view: View) -> int:
        """How many more may start now, whatever they are like."""
        return count_room(view)

    def _count_planned(self) -> int:
        """How many may start unmeasured: as many as were planned, where others keep this GPU.

        A pack of one GPU ends where it has nothing to do, and gives its GPU to the next one. Here
        the next one waits for all GPU sets of the job.
        """
        policy = self.pack.record.policy
        # In the first turn its own are not taken in yet.
        if not self.job_sets.others or policy is None or inbox.list_waiting(str(self.pack.path)):
            return 0
        return max(0, policy.degree - len(self.pack.members.running()))

    def _count_sooner(self, sister: SisterPack, waiting: Sequence[int]) -> int:
        """How many start here sooner than in a sister that runs and may yet start them itself."""
        planned = self._count_planned()
        if not planned or not waiting or sister.guests_of:
            return 0
        begun = count_begun(sister.path, sister.attempt)
        return min(planned, self.job_sets.count_sooner(sister.record, begun, len(waiting)))

    def _take_from_job(self) -> bool:
        """Take one that starts here sooner than in its set of the same job; False for none."""
        # In the first turn its own are not taken in yet.
        if inbox.list_waiting(str(self.pack.path)) or not self._count_places(self.look.look()):
            return False
        return any(
            self._take_from(source.pack, source.waiting, 1, may_have_run=True)
            for source in self.job_sets.find_sources()
        )

    def _take(self, room: int) -> None:
        found = [
            read_sister(self.pack.state, path, self.pack.record)
            for path in self._list_sisters()
            if path not in self.job_sets.others
        ]
        found += [
            read_sister(self.pack.state, path, self.pack.record, job_id)
            for path, job_id in find_others(self.pack.state, self.pack.path, self.pack.record)
        ]
        sisters = [sister for sister in found if sister is not None]
        takers = 1 + sum(sister.may_have_room for sister in sisters)
        is_asking = False
        for sister in sisters:
            if room <= 0:
                return
            waiting = list_waiting_here(sister, self.pack.attempt)
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
            if waiting and not self.jobs.knows(sister):
                self.jobs.ask(sister)
                is_asking = True
                continue
            if waiting and not self.jobs.may_take_from(sister):
                continue
            room -= self._take_from(sister, waiting, most)

    def _take_from(
        self,
        sister: SisterPack,
        waiting: Sequence[int],
        most: int,
        *,
        may_have_run: bool = False,
    ) -> int:
        """Take up to so many of those that wait in another pack; how many that were.

        Args:
            sister: The pack.
            waiting: Their numbers there.
            most: How many.
            may_have_run: Those may come that have run there.
        """
        count = 0
        with keep_both_open(self.pack.state, self.pack.path, sister.path, sister.attempt) as may:
            if not may:
                return 0
            fits, view = self._choose(sister, waiting, may_have_run=may_have_run), self.look.look()
            for number in (m.number for m in fits if not self.would_wait(m, view)):
                if count >= most:
                    break
                self.fence.check()
                there = self._number_here(sister, number)
                if there is None:
                    break
                if inbox.decide(str(sister.path), str(self.pack.path), number, there):
                    self._decided[sister.path, number] = there
                    count += 1
            self._taken[sister.name] = self._taken.get(sister.name, 0) + count
            self._fetch()
            if self._may_be_empty(sister) and empty_job(
                self.pack.state, sister, self.pack.path.name
            ):
                self.pack.journal.write("emptied", pack=sister.name)
                self.jobs.cancel(sister)
        return count

    def would_wait(self, member: Member, view: View) -> bool:
        """Whether a member would wait here although it has a place."""
        if self.memory.is_too_large(member):
            return True
        return find_wait(view, self.look.look_at(member), ON_THE_GPU) is not None

    def _number_here(self, sister: SisterPack, number: int) -> int | None:
        """The number that a member will have here; None where there is none left."""
        if not sister.guests_of:
            return number
        there = choose_guest_number(self.pack.attempt, self._guests)
        if there is not None:
            self._guests += 1
            # Before it goes: a reader is to find it, wherever it is.
            self.pack.state.note_taker(sister.name, sister.guests_of, self.pack.path.name)
            home = HomeRecord(
                job=sister.guests_of,
                number=number,
                pack_id=sister.name,
                created_at=sister.record.created_at,
                submit_directory=sister.record.submit_directory,
                submit_host=sister.record.submit_host,
            )
            write_home(sister.path, number, home)
            self._settle_plan(sister, number)
        return there

    def _may_be_empty(self, sister: SisterPack) -> bool:
        is_mine = not sister.attempt and self._taken[sister.name] > 0
        is_in_job = sister.path in self.job_sets.others
        return is_mine and not is_in_job and not read_emptied(sister.path)

    # -- on their way here ------------------------------------------------------------------

    def _list_sisters(self) -> list[Path]:
        """The other packs of the submission that are there."""
        ids = self.pack.state.list_sisters(self.pack.record)
        paths = (
            self.pack.state.pack_path(each) for each in ids if each != self.pack.record.pack_id
        )
        return [path for path in paths if path.is_dir()]

    def _list_sources(self) -> list[Path]:
        """The packs that members may be on their way from to this one."""
        ids = self.pack.state.list_sources(self.pack.record.pack_id)
        return [*self._list_sisters(), *map(self.pack.state.pack_path, ids)]

    def _look_back(self) -> None:
        """Once: what an earlier attempt has decided, wherever it was interrupted."""
        if self._has_looked_back:
            return
        for source in self._list_sources():
            for number, taking in inbox.list_leaving(str(source)).items():
                if taking.taker == self.pack.path.name:
                    self._decided[source, number] = taking.number
        for there in inbox.list_arrived(str(self.pack.path)):
            self._decided[self._find_home(there)] = there
        self.intake.adopt_taken()
        self._has_looked_back = True

    def _find_home(self, there: int) -> tuple[Path, int]:
        """The pack that a member here was planned for, and its number there."""
        home = read_home(self.pack.path, there)
        if home is not None:
            return self.pack.state.pack_path(home.pack_id), home.number
        for source in self._list_sisters():
            record = self.pack.state.read_pack(source.name)
            if record is not None and there in record.members:
                return source, there
        return self.pack.path, there

    def _fetch(self) -> None:
        """Let those come that can.

        Raises:
            OSError: The file system fails; the others are fetched at the next call.
            StateError: Likewise.
        """
        for (source, number), there in list(self._decided.items()):
            if not inbox.move(str(source), str(self.pack.path), number, there):
                # It was cancelled, or given back.
                if not is_there(source / "members" / inbox.format_number(number)):
                    del self._decided[source, number]
                continue
            if source != self.pack.path and source.is_dir():
                hand_on_requests(source, number, self.pack.path, there)
            if inbox.accept(str(self.pack.path), there):
                self.intake.adopt(there)
                self.pack.journal.write("took_over", member=there, source=source.name)
            del self._decided[source, number]

    # -- who fits -----------------------------------------------------------------------------

    def _choose(
        self, sister: SisterPack, waiting: Sequence[int], *, may_have_run: bool = False
    ) -> Iterator[Member]:
        """Those of them that could start here now, each counted into what is left.

        Args:
            sister: The pack where they wait.
            waiting: Their numbers there.
            may_have_run: Those may come that have run there.
        """
        assert self.pack.record.request is not None
        places = PackMembers([replace(p) for p in self.pack.members.places])
        staying = [member for member in self.pack.members.by_number.values() if not member.is_final]
        left_mb = count_host_memory_left_mb(self.pack.record, staying)
        asked_for = {n for d in list_dependents(sister.path) for _, n in d.conditions}
        for number in waiting:
            is_known = not sister.guests_of and number in self.pack.members.by_number
            if number in asked_for or is_known:
                continue
            try:
                spec = read_spec(sister.path, number)
                record = read_state(sister.path, number, sister.attempt)
                is_kept = is_held(sister.path, number) or bool(read_moved(sister.path, number))
            except StateError:
                # It is told of where it is taken in.
                continue
            needed_mb = self._choose_host_memory_mb(sister, spec)
            taken = places.find_places(spec.plan.cpus)
            if (
                sum(place.wanted for place in taken) < spec.plan.cpus
                or is_kept
                or spec.job.depends
                or spec.plan.gpus > max(1, self.pack.record.request.gpus)
                or (record is not None and record.is_final)
                or (record is not None and record.starts > 0 and not may_have_run)
                or (left_mb is not None and (needed_mb is None or needed_mb > left_mb))
                or not self.time_left.suffices_for(spec.job)
                or is_cancel_asked([(sister.path, number)])
            ):
                continue
            places.occupy(number, taken)
            if left_mb is not None and needed_mb is not None:
                left_mb -= needed_mb
            record = record or StateRecord(MemberState.PENDING, sister.attempt)
            yield Member(number, spec, record)

    def _settle_plan(self, sister: SisterPack, number: int) -> None:
        """Give a member of another submission what holds for it among neighbours, before it comes.

        Its own bound counts wherever it runs. A job that was to run alone was planned with its
        `--time` and no more.

        Args:
            sister: The pack where it waits, whose lock is held.
            number: Its number there.

        Raises:
            StateError: It cannot be read, or not be written.
        """
        spec, policy = read_spec(sister.path, number), sister.record.policy
        assert policy is not None
        bound = spec.plan.max_slowdown or choose_bound(spec.job, policy)
        plan = replace(spec.plan, max_slowdown=bound)
        if sister.record.request is None:
            time_s = spec.job.time_limit_s
            plan = replace(
                plan,
                host_memory_mb=self._choose_host_memory_mb(sister, spec),
                wall_limit_s=None if time_s is None else round(time_s * bound),
                gpu_memory_limit_mb=spec.job.gpu_memory_mb,
            )
        folder = sister.path / "members" / format_number(number)
        write_spec(folder, replace(spec, plan=plan))

    def _choose_host_memory_mb(self, sister: SisterPack, spec: MemberSpec) -> int | None:
        """What a member is given here; a job alone that does not say has a place's share."""
        stated_mb = spec.plan.host_memory_mb or spec.job.host_memory_mb
        total_mb = (
            None if self.pack.record.request is None else self.pack.record.request.host_memory_mb
        )
        if stated_mb is not None or total_mb is None or sister.record.request is not None:
            return stated_mb
        return total_mb // max(1, len(self.pack.members.places))


@contextlib.contextmanager
def keep_both_open(state: State, pack: Path, other: Path, attempt: int) -> Iterator[bool]:
    """Keep csub from settling either of two packs; False where it does so, or has done it.

    A pack of which it is told that no csub looks at it any more neither gives nor takes.

    Args:
        state: The state directory.
        pack: The one that takes.
        other: The one that gives.
        attempt: The newest attempt of the other when it was looked at.
    """
    with hold_lock(pack / "lock", 0) as own, hold_lock(other / "lock", 0) as its:
        yield bool(own and its) and (
            all(is_there(state.open / path.name) for path in (pack, other))
            and read_ended(pack) is None
            and read_ended(other) is None
            and read_attempt(other) == attempt
            and not is_being_cancelled(other)
            and not is_being_cancelled(pack)
        )
