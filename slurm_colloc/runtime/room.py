"""The figures of a place: what is left of GPU memory, host memory and time for one more member.

What is reserved for a member is its part at the start (planning.hard_limits), and once it has
settled what its process takes, with a margin. The limit that it was started with stays. One that
begins alone has no limit, and what its process takes counts until the limits of others begin.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import (
    RESUBMISSIONS,
    MemberState,
    WaitKind,
    WaitReason,
    describe_taken_at_once,
)
from slurm_colloc.planning.hard_limits import PART_OF_GPU, FreeMemory
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_progress import ProgressReader
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.pause_members import find_measuring_obstacle
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.member_states import is_held
from slurm_colloc.store.pack_directory import PackRecord

ALIKE_MOST = 8
"""Members that are alike have threads as if no more than these shared: a quarter of the GPU's.
Fewer gain little (measured on an H200: 12 small trainings with a sixth each make 9.5 times the
progress of one, 16 with a fifth 9.9), and a lone one at the end would lose more."""

PATIENCE_S = 60.0
"""How long an unknown member that cannot be held to its part is waited for until it has settled;
then its share by the places is reserved for it."""


@dataclass(eq=False, kw_only=True)
class Watch:
    """Whether the members of a pack are watched.

    Attributes:
        pack: The attempt of the pack.
        monitor: Watches them.
        gpu_mode: How they share the GPU.
    """

    pack: PackContext
    monitor: PackMonitor
    gpu_mode: GpuMode

    @property
    def unwatched(self) -> str:
        """Why nothing of the pack is watched; empty where it is."""
        return self.monitor.obstacle

    @property
    def obstacle(self) -> str:
        """Why nothing is measured in it; empty where it is."""
        unwatched = find_measuring_obstacle(self.pack.settings, self.monitor.obstacle)
        return self.gpu_mode.why_unmeasured or unwatched


@dataclass(eq=False, kw_only=True)
class GpuMemoryRoom:
    """What is reserved, and what is left.

    Attributes:
        pack: The attempt of the pack.
        progress: Sees what they take.
        gpu_mode: What the GPUs have, and whether members are held to their limits.
        watch: Whether it is seen what they take.
        states: Writes down what members took at once.
    """

    pack: PackContext
    progress: ProgressReader
    gpu_mode: GpuMode
    watch: Watch
    states: StateWriter

    def __post_init__(self) -> None:
        self._unsettled_since: dict[tuple[int, int], float] = {}

    def work(self) -> None:
        """Write down who took most of what it may take before it needed any."""
        for member in self.pack.members.with_process():
            if member.number in self.progress.taken_at_once:
                continue
            taken_mb = self.progress.find_gpu_at_once_mb(member)
            text = describe_taken_at_once(taken_mb, self._find_may_take_mb(member))
            if text and member.record.state is MemberState.RUNNING:
                self.progress.taken_at_once.add(member.number)
                evidence = tuple(dict.fromkeys((*member.record.evidence, text)))
                self.states.write(
                    member, MemberState.RUNNING, evidence=evidence, taken_at_once=text
                )

    def _find_may_take_mb(self, member: Member) -> int | None:
        """GPU memory that a member may take at most; None where it has the GPU to itself."""
        if len(self.pack.members.places) < 2 or member.gpu is None:
            return None
        return member.gpu.gpu_memory_limit_mb or self.gpu_mode.setup.gpu_memory_mb

    def find_need_mb(self, member: Member) -> int | None:
        """What a member needs: as planned, or as one like it took; None where unknown."""
        floor_mb = member.record.retries.gpu_memory_mb
        planned_mb = member.spec.plan.gpu_memory_limit_mb
        need_mb = planned_mb if planned_mb is not None else self.progress.find_gpu_need_mb(member)
        return max(floor_mb, need_mb or 0) if floor_mb else need_mb

    def is_too_large(self, member: Member) -> bool:
        """Whether a member takes more than a whole GPU of this pack has."""
        usable_mb, need_mb = self.gpu_mode.usable_mb, self.find_need_mb(member)
        return usable_mb is not None and need_mb is not None and need_mb > usable_mb

    def find_reserved_mb(self, member: Member) -> int:
        """What counts as a running member's on its GPU, also while it is moved away from there."""
        return self._find_reserved_mb(member, self.gpu_mode.usable_mb or 0)

    def reserve(
        self, member: Member, free: FreeMemory | None, *, is_later: bool = False
    ) -> tuple[int | None, tuple[str, ...]]:
        """Reserve memory for a member that starts now.

        Args:
            member: The member.
            free: What is reserved for none; None where that is not known.
            is_later: It waits until so much is free before it uses the GPU.

        Returns:
            What its process may take at most of each of its GPUs, None for no limit; and the GPUs
            that it gets, none where they are not known.
        """
        member.reserved_mb = None
        if free is None:
            return None, ()
        gpus = member.spec.plan.gpus
        chosen = free.choose_gpus(gpus)
        named = tuple(gpu for gpu in self.gpu_mode.setup.gpus if gpu in chosen)
        if not self.counts:
            return member.spec.plan.gpu_memory_limit_mb, named
        need_mb = self.find_need_mb(member)
        part_mb = free.choose_part_mb(need_mb, gpus)
        if is_later:
            part_mb = free.usable_mb // PART_OF_GPU if need_mb is None else need_mb
        is_held = self._is_held_to(member)
        if self._begins_alone(member):
            is_held, part_mb = False, need_mb
        if part_mb is None:
            # The only one: it may try all that there is.
            part_mb = max(0, free.find_free_mb(gpus))
        member.reserved_mb = part_mb
        return (part_mb if is_held else None), named

    def find_likely_degree(self, starting: Member) -> int | None:
        """Among how many the GPU's threads are divided for a member that starts; None as planned.

        Limits on threads pay where all that share are alike. Among unlike ones, or with some that
        end earlier, one with few threads would be slow for as long as its process lives. The first
        of a kind has all: its rate while the others pause is that of one alone.
        """
        if starting.spec.plan.predicted_slowdown is not None or self.watch.obstacle:
            return None
        waiting = (self.pack.members.by_number[number] for number in self.pack.members.waiting)
        here = [starting, *self.pack.members.with_process(), *waiting]
        kinds = {self.progress.find_family(member) or f"#{member.number}" for member in here}
        if len(kinds) > 1 or not self.pack.members.with_process():
            return 1
        count = len({member.number for member in here})
        return max(1, min(len(self.pack.members.places), count, ALIKE_MOST))

    def is_settled(self, member: Member) -> bool:
        """Whether what a member takes is known by now, or will not be soon."""
        return self.progress.find_gpu_settled_mb(member) is not None or self._is_given_up(member)

    # -- by member ----------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        """Whether what members take can be told: where they are held to it, or it is seen."""
        return self.gpu_mode.enforces or not self.watch.obstacle

    def _is_held_to(self, member: Member) -> bool:
        """Whether a member gets a limit.

        None that has failed by one gets another. Nor does one of ours end a job that may not be run
        again; a limit that its user gave does.
        """
        job = member.spec.job
        if member.record.retries.gpu_memory_mb:
            return False
        return job.requeue is not False or job.gpu_memory_mb is not None

    def _begins_alone(self, member: Member) -> bool:
        """Whether a member that starts is to have all of the GPU's memory, as outside of a pack.

        A limit that its user gave holds all the same, and a program that takes what it gets has
        one: others would find nothing.
        """
        others = self.pack.members.with_process() or self.pack.members.waiting
        if others or member.spec.job.gpu_memory_mb is not None or not self.gpu_mode.enforces:
            return False
        return not self.progress.takes_at_once(member)

    def _find_reserved_mb(self, member: Member, usable_mb: int) -> int:
        """What counts as a running member's on each of its GPUs."""
        stated_mb = max(
            member.spec.job.gpu_memory_mb or 0, member.record.retries.gpu_memory_mb or 0
        )
        settled_mb = self.progress.find_gpu_settled_mb(member)
        if settled_mb is not None:
            return max(stated_mb, settled_mb)
        gpus = max(1, len(self.gpu_mode.setup.gpus))
        share_mb = usable_mb * gpus // max(1, len(self.pack.members.places))
        limit_mb = None if member.gpu is None else member.gpu.gpu_memory_limit_mb
        if member.reserved_mb is None:
            # An earlier attempt has started it.
            return max(stated_mb, limit_mb or min(usable_mb, share_mb))
        is_free = limit_mb is None and self.find_need_mb(member) is None
        if (is_free or not self.gpu_mode.enforces) and self._is_given_up(member):
            return max(stated_mb, min(member.reserved_mb, share_mb))
        return member.reserved_mb

    def _is_given_up(self, member: Member) -> bool:
        key = member.number, member.record.starts
        since = self._unsettled_since.setdefault(key, self.pack.clock())
        return self.pack.clock() - since >= PATIENCE_S


END_MARGIN_S = 20.0
"""What is left of a pack's time limit for its end."""


@dataclass(eq=False, kw_only=True)
class TimeLeft:
    """The time of one attempt of a pack.

    A member that would be ended half-way by the end of its pack is not started. It stays as it
    came, so that the next call of csub submits it again, in a pack with time enough.

    Attributes:
        pack: The attempt of the pack.
        site_requeues: Slurm's JobRequeue.
    """

    pack: PackContext
    site_requeues: bool

    def __post_init__(self) -> None:
        self._limit_s = (
            None if self.pack.record.request is None else self.pack.record.request.time_limit_s
        )
        self._begun_at = self.pack.clock()
        # Elsewhere they would not be submitted again.
        is_swept = not self.pack.record.local
        self._may_hand_back = is_swept and self.pack.record.resubmissions < RESUBMISSIONS

    @property
    def left_s(self) -> float | None:
        """Seconds until Slurm ends the pack; None without a limit that is known."""
        if self._limit_s is None:
            return None
        return self._limit_s - (self.pack.clock() - self._begun_at)

    def suffices_for(self, job: Job) -> bool:
        """Whether a job that comes from elsewhere could run to its end."""
        if self.left_s is None:
            return True
        return job.time_limit_s is not None and job.time_limit_s + END_MARGIN_S <= self.left_s

    def is_too_short_for(self, member: Member) -> bool:
        """Whether a member that has not begun its work is better off in another pack."""
        job, left_s = member.spec.job, self.left_s
        if not self._may_hand_back or left_s is None or job.time_limit_s is None:
            return False
        if self.pack.record.chain:
            # What does not end here goes on in the next link.
            return False
        loads_only = member.is_at_door and member.pid is not None
        if left_s >= job.time_limit_s or member.record.starts > int(loads_only):
            return False
        if left_s <= 0:
            # The pack runs on beyond its limit, so that was raised.
            return False
        may_restart = self.site_requeues if job.requeue is None else job.requeue
        # Another pack has no more time than this one had: a job that needs all may start here.
        assert self._limit_s is not None
        is_better = job.time_limit_s + END_MARGIN_S <= self._limit_s and self._has_begun()
        return may_restart and is_better and not is_held(self.pack.path, member.number)

    def describe(self, member: Member) -> WaitReason | None:
        """Why a waiting member is not to be started here any more; None where it may be."""
        if not self.is_too_short_for(member):
            return None
        waits = member.record.waits
        if waits is not None and waits.kind is WaitKind.TIME:
            # As it was written down.
            return waits
        left_s, limit_s = self.left_s, member.spec.job.time_limit_s
        assert left_s is not None
        assert limit_s is not None
        return WaitReason(WaitKind.TIME, left_s=int(left_s), limit_s=limit_s)

    def _has_begun(self) -> bool:
        """A member has been started: no pack hands back all that it was given."""
        members = self.pack.members.by_number.values()
        return any(member.process is not None or member.record.starts for member in members)


def count_host_memory_left_mb(record: PackRecord, members: Iterable[Member]) -> int | None:
    """What members leave of a pack's host memory; None where it asked for no amount."""
    total_mb = None if record.request is None else record.request.host_memory_mb
    if total_mb is None:
        return None
    return total_mb - sum(member.spec.plan.host_memory_mb or 0 for member in members)
