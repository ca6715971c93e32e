"""Which member of a pack has which MIG instance, and which instances should change; no effects."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from slurm_colloc.host.keeper.prepared_mig import MigInstance, PreparedGpu, count_slices
from slurm_colloc.model.mig.mig_layout import place
from slurm_colloc.model.mig.mig_profiles import InstanceProfile
from slurm_colloc.model.why_not_now import NO_INSTANCE
from slurm_colloc.planning.limits.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.runtime.gpu.mig_agent import MigChange
from slurm_colloc.runtime.queue.members import Member


@dataclasses.dataclass(frozen=True)
class SeatNeed:
    """What a member needs of an instance.

    Attributes:
        gpu_memory_mb: Its GPU memory, its first seconds included; None where unknown.
        slices: Compute slices of the instance that it was planned for.
    """

    gpu_memory_mb: int | None
    slices: int


def read_need(member: Member) -> SeatNeed:
    """What a member needs, by its plan."""
    plan = member.spec.plan
    return SeatNeed(plan.gpu_memory_limit_mb, count_slices(plan.instance))


class MigSeats:
    """The instances of a pack.

    Args:
        gpu: The GPU, and what root has made of it.
        can_change: Root changes them on request.
    """

    def __init__(self, gpu: PreparedGpu, *, can_change: bool) -> None:
        self._gpu = gpu
        self._can_change = can_change
        self._occupants: dict[str, int] = {}
        self._refused: set[tuple[str, ...]] = set()

    @property
    def gpu(self) -> PreparedGpu:
        """The GPU, with what stands on it now."""
        return self._gpu

    def keep(self, running: Collection[int]) -> None:
        """Free the instances of members that no longer have a place."""
        self._occupants = {
            uuid: number for uuid, number in self._occupants.items() if number in running
        }

    def find(self, member: Member) -> MigInstance | None:
        """The free instance that a member gets: the smallest that is enough; None for none."""
        free = [one for one in self._gpu.instances if one.uuid not in self._occupants]
        enough = [one for one in free if self._is_enough(one, read_need(member))]
        return min(enough, key=_size, default=None)

    def take(self, member: Member) -> MigInstance | None:
        """Give a member its instance; None where there is none."""
        instance = self.find(member)
        if instance is not None:
            self._occupants[instance.uuid] = member.number
        return instance

    def _is_enough(self, instance: MigInstance, need: SeatNeed) -> bool:
        if _has_room(instance.memory_mb, need) and _has_slices(instance.profile, need):
            return True
        # Where none is quite as it was planned (another driver rounds sizes otherwise), the largest
        # is tried: it is better than to wait for what never comes.
        every = self._gpu.instances
        if self._list_profiles(need) or any(
            _has_room(one.memory_mb, need) and _has_slices(one.profile, need) for one in every
        ):
            return False
        largest = max(every, key=_size)
        is_as_large = (instance.memory_mb, instance.sms) == (largest.memory_mb, largest.sms)
        return is_as_large and (need.gpu_memory_mb or 0) <= instance.memory_mb

    def _list_profiles(self, need: SeatNeed) -> list[InstanceProfile]:
        """Profiles that would be enough, the least first; none where nothing can be changed."""
        if not self._can_change:
            return []
        enough = [
            profile
            for profile in self._gpu.profiles
            if not profile.attributes
            and _has_room(profile.memory_mb, need)
            and profile.compute_slices >= need.slices
        ]
        return sorted(enough, key=lambda p: (p.memory_slices, p.compute_slices))

    def find_change(self, member: Member) -> MigChange | None:
        """What is to be made of free instances for a member that fits none of them.

        Instances that are in use stay as they are. The fewest of the others go.

        Args:
            member: A member that could start.

        Returns:
            None where nothing can be made for it now.
        """
        if not self._can_change or self.find(member) is not None:
            return None
        busy = {one.gpu_instance for one in self._gpu.instances if one.uuid in self._occupants}
        free = sorted({one.gpu_instance for one in self._gpu.instances} - busy)
        for profile in self._list_profiles(read_need(member)):
            for count in range(len(free) + 1):
                for gone in itertools.combinations(free, count):
                    staying = self._gpu.list_placed((busy | set(free)) - set(gone))
                    if place([profile], staying) is None:
                        continue
                    uuids = tuple(
                        one.uuid for one in self._gpu.instances if one.gpu_instance in gone
                    )
                    change = MigChange(self._gpu.uuid, uuids, (profile.name,))
                    return None if self._key(change) in self._refused else change
        return None

    def note_change(
        self, change: MigChange, reason: str, instances: Sequence[MigInstance] | None
    ) -> None:
        """What has become of a change; one that was refused is not asked for again.

        Args:
            change: What was asked for.
            reason: Why it was refused; empty where it was done.
            instances: What stands now; None where that was not told.
        """
        if reason:
            self._refused.add(self._key(change))
        if instances is not None:
            self._gpu = dataclasses.replace(self._gpu, instances=tuple(instances))

    @staticmethod
    def _key(change: MigChange) -> tuple[str, ...]:
        return (*sorted(change.destroy), *change.create)

    def waits_for_taken(self, member: Member) -> bool:
        """Whether an instance stands that is enough for a member, and another member has it."""
        need = read_need(member)
        return any(
            self._is_enough(one, need) for one in self._gpu.instances if one.uuid in self._occupants
        )

    def describe(self, member: Member) -> str:
        """Why a member waits although it has a place; empty where it has an instance."""
        if self.find(member) is not None:
            return ""
        need = read_need(member)
        sizes = sorted({(one.memory_mb, one.profile) for one in self._gpu.instances}, reverse=True)
        largest_mb, largest = sizes[0] if sizes else (0, "none")
        wanted = f"{need.gpu_memory_mb} MB" if need.gpu_memory_mb else f"{need.slices} slices"
        if any(self._is_enough(one, need) for one in self._gpu.instances):
            return f"{NO_INSTANCE} with {wanted}: those that are large enough are taken"
        if self._list_profiles(need):
            return f"{NO_INSTANCE} with {wanted}: one is made as soon as enough slices are free"
        return f"{NO_INSTANCE} with {wanted}: the largest, {largest}, has {largest_mb} MB"


def _has_room(memory_mb: int, need: SeatNeed) -> bool:
    return need.gpu_memory_mb is None or need.gpu_memory_mb <= int(memory_mb * GPU_MEMORY_SHARE)


def _has_slices(profile: str, need: SeatNeed) -> bool:
    return count_slices(profile) >= need.slices


def _size(instance: MigInstance) -> tuple[int, int, int, int]:
    return instance.memory_mb, instance.sms, instance.gpu_instance, instance.compute_instance
