"""Which member of a pack has which MIG instance, and which instances should change; no effects."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.host.keeper.prepared_mig import MigInstance, PreparedGpu, count_slices
from slurm_colloc.model.mig.mig_layout import place
from slurm_colloc.model.mig.mig_profiles import InstanceProfile
from slurm_colloc.model.why_not_now import NO_INSTANCE
from slurm_colloc.planning.limits.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.runtime.gpu.mig.mig_agent import MigChange
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
        places: How many members share an instance, by UUID; one has each that is not named.
    """

    def __init__(
        self, gpu: PreparedGpu, *, can_change: bool, places: Mapping[str, int] | None = None
    ) -> None:
        self._gpu = gpu
        self._can_change = can_change
        self._places = dict(places or {})
        self._occupants: dict[int, tuple[MigInstance, int]] = {}
        self._refused: set[tuple[str, ...]] = set()

    @property
    def gpu(self) -> PreparedGpu:
        """The GPU, with what stands on it now."""
        return self._gpu

    def keep(self, running: Collection[int]) -> None:
        """Free the instances of members that no longer have a place."""
        self._occupants = {
            number: taken for number, taken in self._occupants.items() if number in running
        }

    def find(self, member: Member) -> MigInstance | None:
        """The instance that a member gets: the smallest free one that is enough; None for none.

        Where members share instances, that for which it was planned, and the emptiest of those.
        """
        need = read_need(member)
        enough = [one for one in self._gpu.instances if self._has_place(one, member)]

        def rank(one: MigInstance) -> tuple[bool, int, tuple[int, int, int, int]]:
            is_other = bool(self._places) and one.slices != need.slices
            return is_other, len(self.list_members(one.uuid)), _size(one)

        return min(enough, key=rank, default=None)

    def take(self, member: Member) -> MigInstance | None:
        """Give a member its instance; None where there is none."""
        instance = self.find(member)
        if instance is not None:
            self._occupants[member.number] = instance, self._count_mb(instance, member)
        return instance

    def count_places(self, uuid: str) -> int:
        """How many members share an instance."""
        return self._places.get(uuid, 1)

    def close_to_others(self, uuid: str) -> None:
        """Let one member at a time have an instance that several were to share."""
        self._places.pop(uuid, None)

    def list_members(self, uuid: str) -> list[int]:
        """Those that have an instance now."""
        return [number for number, (one, _) in self._occupants.items() if one.uuid == uuid]

    def _has_place(self, instance: MigInstance, member: Member) -> bool:
        """Whether an instance is free for a member, or has room for it alongside others."""
        if not self._is_enough(instance, read_need(member)):
            return False
        inside = self.list_members(instance.uuid)
        if not inside:
            return True
        if len(inside) >= self.count_places(instance.uuid) or member.record.retries.apart:
            return False
        taken_mb = sum(mb for one, mb in self._occupants.values() if one.uuid == instance.uuid)
        need_mb = self._count_mb(instance, member)
        return taken_mb + need_mb <= int(instance.memory_mb * GPU_MEMORY_SHARE)

    def _count_mb(self, instance: MigInstance, member: Member) -> int:
        """What a member takes of an instance's memory: as it needs, else its part of that."""
        places = self.count_places(instance.uuid)
        if member.record.retries.apart:
            return instance.memory_mb
        fair_mb = int(instance.memory_mb * GPU_MEMORY_SHARE) // places
        return read_need(member).gpu_memory_mb or fair_mb

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
        busy = {one.gpu_instance for one, _ in self._occupants.values()}
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
        return any(self._is_enough(one, need) for one, _ in self._occupants.values())

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


def match_places(gpu: PreparedGpu, words: Sequence[str], places: Sequence[int]) -> dict[str, int]:
    """How many members share each instance, by UUID, as it was planned for a layout.

    Args:
        gpu: The GPU with its instances.
        words: The layout's words.
        places: How many members have each at once; none for one each.
    """
    left = sorted(gpu.instances, key=_size)
    found = {}
    for word, count in zip(words, places, strict=bool(places)):
        alike = [one for one in left if one.slices == count_slices(word)]
        if alike and count > 1:
            one = next((one for one in alike if one.profile == word), alike[0])
            left.remove(one)
            found[one.uuid] = count
    return found


def _has_room(memory_mb: int, need: SeatNeed) -> bool:
    return need.gpu_memory_mb is None or need.gpu_memory_mb <= int(memory_mb * GPU_MEMORY_SHARE)


def _has_slices(profile: str, need: SeatNeed) -> bool:
    return count_slices(profile) >= need.slices


def _size(instance: MigInstance) -> tuple[int, int, int, int]:
    return instance.memory_mb, instance.sms, instance.gpu_instance, instance.compute_instance
