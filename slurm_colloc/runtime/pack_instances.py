"""The MIG instances of a pack while it runs: each member gets one.

They are taken as the node's prolog has made them, or the pack goes on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.host.keeper.prepared_daemon import MigInstance, PreparedGpu, count_slices
from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.node_daemon import InstancesFinding, find_instances
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.place_member import AS_PLANNED, GpuShare
from slurm_colloc.runtime.settled_mode import SettledMode, SetupRecord
from slurm_colloc.store.member_states import GpuUse

if TYPE_CHECKING:
    from slurm_colloc.runtime.instance_daemons import InstanceDaemons


# ---- Which member of a pack has which MIG instance; no effects -----------------------------------


@dataclass(frozen=True)
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
        places: How many members share an instance, by UUID; one has each that is not named.
    """

    def __init__(self, gpu: PreparedGpu, places: Mapping[str, int] | None = None) -> None:
        self._gpu = gpu
        self._places = dict(places or {})
        self._occupants: dict[int, tuple[MigInstance, int]] = {}

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
        if any(_has_room(one.memory_mb, need) and _has_slices(one.profile, need) for one in every):
            return False
        largest = max(every, key=_size)
        is_as_large = (instance.memory_mb, instance.sms) == (largest.memory_mb, largest.sms)
        return is_as_large and (need.gpu_memory_mb or 0) <= instance.memory_mb

    def waits_for_taken(self, member: Member) -> bool:
        """Whether another member has an instance that is enough for a member."""
        need = read_need(member)
        return any(self._is_enough(one, need) for one, _ in self._occupants.values())

    def describe(self, member: Member) -> WaitReason | None:
        """Why a member waits although it has a place; None where it has an instance."""
        if self.find(member) is not None:
            return None
        need = read_need(member)
        wanted = f"{need.gpu_memory_mb} MB" if need.gpu_memory_mb else f"{need.slices} slices"
        return WaitReason(WaitKind.INSTANCE, told=wanted)

    def find_misfit(self, member: Member) -> str:
        """Why no instance is enough for a member, free or taken; empty where one is."""
        need = read_need(member)
        if any(self._is_enough(one, need) for one in self._gpu.instances):
            return ""
        largest = max(self._gpu.instances, key=_size)
        return (
            f"it needs {need.gpu_memory_mb} MB of GPU memory, and the largest MIG instance of its "
            f"pack, {largest.profile}, has {largest.memory_mb} MB: submit it again with a larger "
            "instance in --share, or with another --share"
        )


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


# ---- The instances with what runs in them --------------------------------------------------------


class PackInstances:
    """What root has made of the pack's GPU, and who has it.

    Args:
        gpu: The GPU with its instances.
        places: How many members share an instance, by UUID; one has each that is not named.

    Attributes:
        gpu: The GPU with its instances.
        seats: Who has which instance.
    """

    def __init__(self, gpu: PreparedGpu, places: Mapping[str, int] | None = None) -> None:
        self.gpu = gpu
        self.seats = MigSeats(gpu, places)
        self._shared = tuple(places or {})
        self._daemons: InstanceDaemons | None = None

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        return [] if self._daemons is None else self._daemons.filenos()

    def use_mps(self, daemons: InstanceDaemons) -> None:
        """Start MPS in the instances that members share."""
        self._daemons = daemons
        daemons.start(self._shared)

    @property
    def is_ready(self) -> bool:
        """Members can start, as far as MPS inside goes: each daemon answers, or there is none."""
        return self._daemons is None or all(map(self._daemons.is_settled, self._shared))

    def follow_daemons(self) -> list[str]:
        """Hear what has become of MPS inside; what is worth telling of it, a sentence each."""
        if self._daemons is None:
            return []
        self._daemons.work()
        for uuid in self._daemons.list_without():
            self.seats.close_to_others(uuid)
        return self._daemons.take_notes()

    def place(
        self, member: Member, share: GpuShare = AS_PLANNED
    ) -> tuple[GpuUse | None, dict[str, str]]:
        """How a member that starts now is put on its instance, and the environment that does it.

        Args:
            member: The member.
            share: What it is given of an instance that it shares.

        Raises:
            OSError: None is free, which nothing but an error of ours makes happen.
        """
        instance = self.seats.take(member)
        if instance is None:
            raise OSError(f"no MIG instance is free for member {member.number}")
        use = GpuUse(
            SharingMode.MIG.value,
            gpu_memory_limit_mb=instance.memory_mb,
            uuids=(instance.uuid,),
            instance=instance.profile,
            gpu_instance=instance.gpu_instance,
            gpu=self.gpu.uuid,
            instance_sms=instance.sms,
            gpu_sms=max((profile.sms for profile in self.gpu.profiles), default=None),
        )
        # CUDA sees one instance at most, and of several GPUs none by its index.
        environment = {"CUDA_VISIBLE_DEVICES": instance.uuid}
        daemon = None if self._daemons is None else self._daemons.get(instance.uuid)
        if daemon is None or not daemon.pipe_directory or member.record.retries.apart:
            return use, environment
        from slurm_colloc.runtime.member_limits import SharedGpu, place_under_mps

        count = self.seats.count_places(instance.uuid)
        given_mb = member.spec.plan.gpu_memory_limit_mb
        if given_mb is None and instance.memory_mb is not None:
            given_mb = instance.memory_mb // max(1, count)
        is_limited = not member.record.retries.gpu_memory_mb
        inside, environment = place_under_mps(
            SharedGpu((instance.uuid,), instance.memory_mb, count, daemon.pipe_directory),
            thread_percentage=member.spec.plan.thread_percentage,
            limit_mb=given_mb if is_limited else None,
            client_priority=share.client_priority,
        )
        limit_mb = inside.gpu_memory_limit_mb
        return replace(
            use,
            inside=SharingMode.MPS.value,
            thread_percentage=inside.thread_percentage,
            gpu_memory_limit_mb=use.gpu_memory_limit_mb if limit_mb is None else limit_mb,
        ), environment

    # -- MPS inside ---------------------------------------------------------------------------

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep their server from taking new clients."""
        return [] if self._daemons is None else self._daemons.list_stuck()

    def catch_up(self) -> None:
        """Hear all that the daemons have said up to now; waits for a moment at most."""
        if self._daemons is not None:
            self._daemons.catch_up()

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        if self._daemons is not None:
            self._daemons.let_go()

    def close(self) -> None:
        """End the daemons."""
        if self._daemons is not None:
            self._daemons.close()


# ---- Taking the MIG instances that the node's prolog has made, or going on without them ----------


def take_instances(
    pack: PackContext,
    environ: Mapping[str, str],
    settled: SettledMode,
    preparation: SetupRecord,
    *,
    share: Callable[[PackInstances], None],
    start_daemon: Callable[[], None],
) -> tuple[PackInstances | None, bool]:
    """Take the instances; None where there are none.

    Args:
        pack: The attempt of the pack.
        environ: The batch script's environment; empty where there is no Slurm.
        settled: The mode.
        preparation: The attempt's setup.
        share: Starts MPS in the instances that members share.
        start_daemon: Starts MPS in the one instance that has the whole GPU.

    Returns:
        The instances, and whether nothing else is left to be tried.
    """
    found, record = find_instances(environ), pack.record
    if found.gpu is None or found.reason:
        is_done = _go_without(
            found, ShareRequest.parse(record.share), settled, preparation, start_daemon
        )
        return None, is_done
    wanted = match_places(found.gpu, record.layout, record.layout_places)
    places = wanted if found.mps_inside else {}
    instances = PackInstances(found.gpu, places)
    if wanted and not places:
        preparation.add_notes(
            "the node's policy lets no MPS run inside an instance (mig_mps_inside): each takes "
            "one member at a time"
        )
    if places:
        share(instances)
    preparation.note_instances(instances)
    settled.settle(SharingMode.MIG, "the node has cut the GPU for this pack")
    return instances, True


def _go_without(
    found: InstancesFinding,
    request: ShareRequest,
    settled: SettledMode,
    preparation: SetupRecord,
    start_daemon: Callable[[], None],
) -> bool:
    """What follows where the layout could not be had; True where that settles it.

    Args:
        found: Why there is no layout; with the GPU where one instance has all of it.
        request: What `--share` asked for.
        settled: The mode.
        preparation: The attempt's setup.
        start_daemon: Starts MPS in the one instance that has the whole GPU.
    """
    whole, reason = found.gpu, found.reason
    if whole is not None:
        preparation.note_whole_instance(whole)
    if request.strict:
        settled.fall_back(reason)
        return True
    if request.mode is None:
        # csub has chosen it because MPS does not hold these members together.
        settled.settle_one_at_a_time(reason)
        return True
    settled.lacks_mig = reason
    if whole is not None and found.mps_inside:
        start_daemon()
    elif whole is not None:
        settled.fall_back("the node's policy lets no MPS run inside an instance (mig_mps_inside)")
    return whole is not None


def follow_instances(instances: PackInstances, preparation: SetupRecord) -> None:
    """Write down what has become of MPS inside.

    Args:
        instances: The pack's instances.
        preparation: The attempt's setup.
    """
    if notes := instances.follow_daemons():
        preparation.add_notes(*notes)
        preparation.note_instances(instances)
        preparation.write()
