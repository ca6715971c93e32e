"""Starting waiting members in places that are free, until none is left and the pack is closed."""

from __future__ import annotations

from functools import partial

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import EndCause, MemberState
from slurm_colloc.model.why_not_now import say_why
from slurm_colloc.planning.arrange import Enter, Order, Preload, arrange, find_front, find_wait
from slurm_colloc.planning.hard_limits import FreeMemory
from slurm_colloc.runtime.collect_ends import MemberEnds
from slurm_colloc.runtime.door import Doors
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.guarded_steps import is_passing
from slurm_colloc.runtime.look import PackLook
from slurm_colloc.runtime.may_start import StartQueue
from slurm_colloc.runtime.member_mails import MemberMails
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.place_member import BELOW_NORMAL, NORMAL, GpuShare
from slurm_colloc.runtime.requeue_after_kill import tell_of_restart
from slurm_colloc.runtime.room import GpuMemoryRoom
from slurm_colloc.runtime.sister_packs import JobSets
from slurm_colloc.runtime.start_member import MemberStarter
from slurm_colloc.runtime.stop_member import AttemptFence
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store import inbox
from slurm_colloc.store.member_states import StateRecord, is_held, read_home, read_state
from slurm_colloc.store.pack_directory import read_spec
from slurm_colloc.store.written_ends import RunnerKill, find_written_end


@dataclass(eq=False, kw_only=True)
class PlaceFiller:
    """Starts the members that may start.

    Attributes:
        pack: The attempt of the pack.
        look: Looks at the pack.
        start_queue: Writes down why members wait.
        doors: Starts members ahead of their turn.
        memory: What a member may take of the GPU's memory.
        gpu_mode: Whether any may start here at all.
        starter: Starts members.
        ends: Told of those that could not be started.
        states: Writes their states.
        intake: Takes in new members.
        job_sets: Other GPU sets of the job, to which members are left where none may start here.
        fence: Raises before a start where a newer attempt has begun.
    """

    pack: PackContext
    look: PackLook
    start_queue: StartQueue
    doors: Doors
    memory: GpuMemoryRoom
    gpu_mode: GpuMode
    starter: MemberStarter
    ends: MemberEnds
    states: StateWriter
    intake: MemberIntake
    job_sets: JobSets
    fence: AttemptFence

    def work(self) -> None:
        """Take what has entered, and start as many as may run."""
        self.intake.work()
        if self.gpu_mode.refusal:
            self.doors.open_all()
            waiting = [n for n in self.pack.members.waiting if not is_held(self.pack.path, n)]
            if not self.job_sets.leave(waiting):
                self._refuse_all()
            return
        self.doors.work()
        if (instances := self.gpu_mode.instances) is not None:
            places = self.pack.members.places
            instances.seats.keep({place.occupant for place in places if place.occupant is not None})
        while self._take_step():
            pass

    def _take_step(self) -> bool:
        """Look, and do what follows; False where nothing does."""
        view = self.look.look()
        chosen = arrange(view)
        self.start_queue.follow(view, chosen, self.look.dependencies)
        if chosen.at_door is not None:
            self.doors.tell(chosen.at_door)
        if chosen.order is None:
            return False
        self.fence.check()
        return self._carry_out(chosen.order, view.compute_free())

    def _carry_out(self, order: Order, free: FreeMemory | None) -> bool:
        """Do what was ordered; False where it cannot be done.

        Args:
            order: The order.
            free: GPU memory that is reserved for none.
        """
        member = self.pack.members.by_number[order.number]
        match order:
            case Enter():
                if not self.gpu_mode.enforces:
                    # Its limit stays.
                    self.memory.reserve(member, free)
                self.doors.enter(member)
            case Preload():
                if not self.doors.close(member):
                    return False
                self._start(member, free)
                if member.process is None:
                    self.doors.drop(member)
            case _:
                self._start(member, free)
        return True

    def close(self) -> bool:
        """Close the pack if nothing waits; False if something has entered meanwhile.

        Called while no member runs.

        Raises:
            NodeError: A member waits that nothing lets start, and nothing runs that could end.
        """
        if self.gpu_mode.refusal:
            # None of the others had room.
            self._refuse_all()
        view = self.look.look()
        if (front := find_front(view)) is not None:
            reason = find_wait(view, front)
            if reason is None or view.pack_waits:
                return False
            raise NodeError(f"member {front.number} cannot be started: {say_why(reason)}")
        if self.intake.has_late() or not inbox.close(str(self.pack.path)):
            return False
        # A fenced attempt may have taken an entry before it noticed.
        self.intake.adopt_taken()
        return not self.intake.has_late() and self.start_queue.leave_behind()

    def refuse_waiting(self, reason: str) -> None:
        """Nothing runs, and nothing will: no member may wait for ever, and none may enter.

        Args:
            reason: Why, for people.
        """
        self.intake.work()
        self._fail_waiting(reason)
        self.close()

    def _start(self, member: Member, free: FreeMemory | None) -> None:
        if not inbox.begin(str(self.pack.path), member.number):
            self.intake.forget(member)
            return
        self.pack.members.waiting.remove(member.number)
        share = self._choose_share(member, free)
        places = self.pack.members.find_places(member.spec.plan.cpus)
        place = self.pack.members.occupy(member.number, places)
        problem: Exception | None = None
        name = f"starting member {member.number}"
        try:
            if self.starter.start(member, place, share):
                self.pack.steps.forget(name)
                return
        except Exception as error:  # noqa: BLE001 - nothing runs yet, so all can be undone
            problem = error
        if problem is not None and is_passing(problem) and not self.pack.steps.note(name, problem):
            # The others first: what fails may be one file of this member's.
            self.ends.free(member)
            self.pack.members.waiting.append(member.number)
            raise problem
        self.pack.steps.forget(name)
        if problem is None or (
            isinstance(problem, FileNotFoundError)
            and self.starter.fall_back(
                member, f"{problem.filename} is not installed or not in PATH"
            )
        ):
            # It was held at the last moment, or is started in another way.
            self.ends.free(member)
            self.pack.members.waiting.appendleft(member.number)
            return
        self.ends.end(
            member, Verdict(MemberState.FAILED, None, f"it could not be started: {problem}")
        )

    def _choose_share(self, member: Member, free: FreeMemory | None) -> GpuShare:
        """What a member is given of the GPU."""
        limit_mb, gpus = self.memory.reserve(member, free, is_later=member.is_at_door)
        return GpuShare(
            self.memory.find_likely_degree(member),
            limit_mb,
            self._choose_client_priority(member),
            gpus,
            max(other.spec.plan.gpus for other in self.pack.members.list_members()),
        )

    def _choose_client_priority(self, member: Member) -> int | None:
        if member.spec.job.stays_fast:
            return NORMAL
        members = self.pack.members.list_members()
        return BELOW_NORMAL if any(m.spec.job.stays_fast for m in members) else None

    def _refuse_all(self) -> None:
        """None may start here: the GPU cannot be shared in the only way that was allowed."""
        # One that has run before had a daemon, and lost it; or its GPU.
        lost = EndCause.GPU_LOST if self.gpu_mode.has_lost_gpu else EndCause.MPS_GONE
        self._fail_waiting(self.gpu_mode.refusal, lost)

    def _fail_waiting(self, reason: str, has_run: EndCause = EndCause.NOT_STARTED) -> None:
        for number in list(self.pack.members.waiting):
            if not is_held(self.pack.path, number):
                self.pack.members.waiting.remove(number)
                member = self.pack.members.by_number[number]
                cause = has_run if member.record.starts else EndCause.NOT_STARTED
                self.states.write_end(member, MemberState.FAILED, None, reason, cause=cause.value)


@dataclass(eq=False, kw_only=True)
class MemberIntake:
    """Takes in members, new ones and those of earlier attempts.

    One whose record is damaged fails alone. Where the file system fails it is tried again by
    `work`.

    Attributes:
        pack: The attempt of the pack.
        killed_before: The killed runner after which it runs; None where there was none.
        states: Writes their states.
        mails: Told of a member that starts again.
    """

    pack: PackContext
    killed_before: RunnerKill | None
    states: StateWriter
    mails: MemberMails

    def __post_init__(self) -> None:
        self._late: set[int] = set()
        self._refused: set[int] = set()
        self._has_missed = False

    def has_late(self) -> bool:
        """A member that was taken could not be read yet."""
        return bool(self._late)

    def is_late(self, number: int) -> bool:
        """Whether a member was taken and could not be read yet."""
        return number in self._late

    def work(self) -> None:
        """Take in what has entered, and what could not be read before.

        Raises:
            OSError: The inbox cannot be read.
            StateError: Likewise.
        """
        for number in sorted(self._late):
            self.adopt(number)
        if self._has_missed:
            # Whether the rename was done is not known: then it is found where it would be.
            self.adopt_taken()
            self._has_missed = False
        for number in inbox.list_waiting(str(self.pack.path)) or []:
            try:
                is_taken = not self._knows(number) and inbox.take(str(self.pack.path), number)
            except StateError:
                self._has_missed = True
                raise
            if is_taken:
                self.adopt(number)

    def forget(self, member: Member) -> None:
        """A waiting member was taken over by another pack before it began here."""
        self.pack.members.forget(member.number)
        self.pack.journal.write("was_taken_over", member=member.number)

    def adopt_taken(self) -> None:
        """Take in all that an earlier attempt has taken from the inbox."""
        for number in inbox.list_taken(str(self.pack.path)):
            if not self._knows(number):
                self.adopt(number)

    def adopt(self, number: int) -> None:
        """Take in a member; unless it has ended it waits for its start, again where it has run.

        One of which something is missing or damaged has failed.
        """
        if number in self.pack.members.by_number or number in self._refused:
            return
        self._late.add(number)
        self.pack.steps.run(
            f"taking in member {number}",
            partial(self._adopt, number),
            partial(self._refuse, number),
        )

    def _knows(self, number: int) -> bool:
        return any(number in known for known in (self.pack.members.by_number, self._refused))

    def _refuse(self, number: int, error: Exception) -> bool:
        self._late.discard(number)
        self._refused.add(number)
        self.states.refuse(number, f"it could not be taken in: {error}")
        return True

    def _adopt(self, number: int) -> None:
        try:
            spec = read_spec(self.pack.path, number)
            # One that has come from another GPU set of the job has its state under this attempt.
            record = read_state(self.pack.path, number, self.pack.attempt)
            end = self._find_written_end(number, record)
            home = read_home(self.pack.path, number)
        except Exception as error:
            if is_passing(error):
                raise
            self._refuse(number, error)
            return
        if record is None:
            record = StateRecord(MemberState.PENDING, self.pack.attempt)
        member = Member(number, spec, record, home=home)
        self.pack.members.by_number[number] = member
        self._late.discard(number)
        if member.is_final:
            self.states.note_end(record.exit_code, record.state)
            return
        if end is not None and end.is_final:
            self._note_written_end(member, end)
            return
        if end is not None:
            member.record = record = replace(record, state=MemberState.RUNNING, retries=end.retries)
        if record.state is not MemberState.PENDING:
            self.pack.steps.run("the mails", partial(self.mails.note_requeue, member))
            member.record = replace(record, state=MemberState.PENDING)
            if self.killed_before is not None:
                member.record = tell_of_restart(member.record, self.killed_before)
        self.pack.members.waiting.append(number)
        # What an earlier attempt was waiting for is over.
        kept = member.record.waits if member.record.dependency else None
        stale = {"reason": "", "at_door": False} if member.record.at_door else {}
        self.states.write(member, MemberState.PENDING, waits=kept, **stale)

    def _find_written_end(self, number: int, record: StateRecord | None) -> StateRecord | None:
        killed = self.killed_before
        killed_at = None if killed is None else killed.at
        return find_written_end(
            self.pack.path, number, record, starts_again=True, killed_at=killed_at
        )

    def _note_written_end(self, member: Member, end: StateRecord) -> None:
        """It ended when there was no runner to note it: it does not run again."""
        # Its start may not have been noted either.
        member.record = replace(end, state=MemberState.RUNNING, ended_at=None, exit_code=None)
        self.states.write_end(
            member,
            end.state,
            end.exit_code,
            end.reason,
            ended_at=end.ended_at,
            cause=end.cause,
            evidence=end.evidence,
        )
        self.pack.journal.write("written_end", member=member.number, state=end.state)
