"""The MIG instances of a pack while it runs: each member gets one, and free ones are changed.

Also: asking the node's agent for other MIG instances while the job runs; which member of a pack has
which MIG instance, and which instances should change; no effects; taking the MIG instances that the
node's prolog has made, or going on without them.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.host.keeper.prepared_daemon import (
    MigInstance,
    PreparedGpu,
    count_slices,
    parse_instances,
)
from slurm_colloc.host.system.directories import read_trusted_uids
from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import InstanceProfile
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.planning.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.runtime.discover_gpus import BackgroundCall
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.node_daemon import InstancesFinding, find_instances
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.place_member import AS_PLANNED, GpuShare
from slurm_colloc.runtime.settled_mode import SettledMode, SetupRecord
from slurm_colloc.store.member_states import GpuUse

if TYPE_CHECKING:
    from slurm_colloc.runtime.instance_daemons import InstanceDaemons


# ---- Asking the node's agent for other MIG instances while the job runs --------------------------
#
# Who: the job's user; where: with the runner. The agent is root's; it decides by itself whether
# what is asked for may be done (host.mig).

CHANGE_S = 60.0
"""To destroy an instance takes a second; an NVML that hangs is given up for the pack."""

_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True)
class MigChange:
    """Instances that are to go, and what is to be made in their place.

    Attributes:
        gpu: The GPU by UUID.
        destroy: Compute instances by UUID.
        create: Profiles by NVML's name.
    """

    gpu: str
    destroy: tuple[str, ...]
    create: tuple[str, ...]


@dataclass(frozen=True)
class ChangeAnswer:
    """What the agent has done.

    Attributes:
        reason: Why nothing was changed; empty where it was.
        instances: What stands now; None where it could not be told.
    """

    reason: str
    instances: tuple[MigInstance, ...] | None = None


def ask_for_change(path: str, change: MigChange, timeout_s: float = CHANGE_S) -> ChangeAnswer:
    """Ask the agent, and wait for its answer.

    Args:
        path: Its socket.
        change: What is asked for.
        timeout_s: How long it may take.
    """
    request = {
        "request": "change",
        "gpu": change.gpu,
        "destroy": list(change.destroy),
        "create": list(change.create),
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            _check_peer(connection)
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_read_line(connection))
    except OSError as error:
        return ChangeAnswer(f"the node's MIG agent does not answer ({error.strerror or error})")
    except ValueError as error:
        return ChangeAnswer(f"the node's MIG agent gives an answer that cannot be read ({error})")
    return read_answer(answer)


def read_answer(answer: object) -> ChangeAnswer:
    """The agent's answer; what cannot be read of it counts as refused."""
    if not isinstance(answer, dict):
        return ChangeAnswer("the node's MIG agent gives an answer that cannot be read")
    try:
        instances = parse_instances(answer["instances"])
    except (KeyError, TypeError, ValueError, IndexError):
        instances = None
    if answer.get("ok") is True and instances is not None:
        return ChangeAnswer("", instances)
    told = escape_controls(cut(str(answer.get("reason") or "the node's MIG agent refuses"), 300))
    return ChangeAnswer(told, instances)


def _check_peer(connection: socket.socket) -> None:
    """That it is root who listens.

    Raises:
        OSError: It is somebody else.
    """
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid not in read_trusted_uids() and uid != os.geteuid():
        raise PermissionError(1, f"user {uid} listens there")


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < _ANSWER_BYTES:
        part = connection.recv(_ANSWER_BYTES)
        if not part:
            break
        data += part
    return data.partition(b"\n")[0]


# ----
# Which member of a pack has which MIG instance, and which instances should change; no effects.


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
            self._gpu = replace(self._gpu, instances=tuple(instances))

    @staticmethod
    def _key(change: MigChange) -> tuple[str, ...]:
        return (*sorted(change.destroy), *change.create)

    def waits_for_taken(self, member: Member) -> bool:
        """Whether an instance stands that is enough for a member, and another member has it."""
        need = read_need(member)
        return any(self._is_enough(one, need) for one, _ in self._occupants.values())

    def describe(self, member: Member, problem: str = "") -> WaitReason | None:
        """Why a member waits although it has a place; None where it has an instance.

        Args:
            member: The member.
            problem: What the node's agent has answered last; empty for nothing.
        """
        if self.find(member) is not None:
            return None
        need = read_need(member)
        sizes = sorted({(one.memory_mb, one.profile) for one in self._gpu.instances}, reverse=True)
        largest_mb, largest = sizes[0] if sizes else (0, "none")
        wanted = f"{need.gpu_memory_mb} MB" if need.gpu_memory_mb else f"{need.slices} slices"
        if any(self._is_enough(one, need) for one in self._gpu.instances):
            why = "those that are large enough are taken"
        elif self._list_profiles(need):
            why = "one is made as soon as enough slices are free"
        else:
            why = f"the largest, {largest}, has {largest_mb} MB"
        why += f" ({problem})" if problem else ""
        return WaitReason(WaitKind.INSTANCE, told=f"{wanted}: {why}")


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


# ----
# The MIG instances of a pack while it runs: each member gets one, and free ones are changed.


class PackInstances:
    """What root has made of the pack's GPU, and who has it.

    Args:
        gpu: The GPU with its instances.
        socket: Where root changes them on request; empty where it does not.
        journal: The pack's log.
        places: How many members share an instance, by UUID; one has each that is not named.
    """

    def __init__(
        self,
        gpu: PreparedGpu,
        socket: str,
        journal: Journal,
        places: Mapping[str, int] | None = None,
    ) -> None:
        self.seats = MigSeats(gpu, can_change=bool(socket), places=places)
        """Who has which instance."""
        self._shared = tuple(places or {})
        self._daemons: InstanceDaemons | None = None
        self._socket = socket
        self._journal = journal
        self._call: BackgroundCall[ChangeAnswer] | None = None
        self._change: MigChange | None = None
        self._problem = ""

    @property
    def gpu(self) -> PreparedGpu:
        """The GPU, with what stands on it now."""
        return self.seats.gpu

    @property
    def is_changing(self) -> bool:
        """Root is at work; members that run are not disturbed, and none starts meanwhile."""
        return self._call is not None

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        found = [] if self._call is None else [self._call.fileno()]
        return found if self._daemons is None else found + self._daemons.filenos()

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

    def work(self) -> str | None:
        """Hear what has become of a change: why it failed, empty where it was done.

        None where there is nothing new.
        """
        if self._call is None or self._change is None or (answer := self._call.poll()) is None:
            return None
        self._call.close()
        change, self._call, self._change = self._change, None, None
        self.seats.note_change(change, answer.reason, answer.instances)
        self._journal.write(
            "mig_change",
            destroyed=change.destroy,
            created=change.create,
            reason=answer.reason,
            instances=[one.uuid for one in self.gpu.instances],
        )
        self._problem = answer.reason
        return answer.reason

    def describe(self, member: Member) -> WaitReason | None:
        """Why a member waits although it has a place; None where it has an instance."""
        if self._call is not None:
            return WaitReason(WaitKind.CHANGE)
        why = self.seats.describe(member, self._problem)
        change = None if why is None else self.seats.find_change(member)
        if change is None:
            return why
        return WaitReason(WaitKind.NEW_INSTANCE, name=change.create[0])

    def make_room(self, member: Member) -> None:
        """Have an instance made for a member of free ones, where that can be done."""
        change = None if self._call is not None else self.seats.find_change(member)
        if change is not None:
            self._change = change
            self._call = BackgroundCall(
                lambda: ask_for_change(self._socket, change),
                lambda problem: ChangeAnswer(str(problem)),
            )

    def lets_pass(self, member: Member) -> bool:
        """Whether those behind a member that waits may take what is free.

        It waits for an instance that is taken: what is free would not be enough for it. Where one
        has to be made for it, what is free is kept for that.
        """
        is_made = self._call is not None or self.seats.find_change(member) is not None
        return not is_made and self.seats.waits_for_taken(member)

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
        """Forget what is under way, and end the daemons."""
        if self._call is not None:
            self._call.close()
            self._call = None
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
    # What an MPS server is on is not cut anew.
    socket = "" if places else found.socket
    instances = PackInstances(found.gpu, socket, pack.journal, places)
    if wanted and not places:
        preparation.add_notes(
            "the node's policy lets no MPS run inside an instance (mig_mps_inside): each takes "
            "one member at a time"
        )
    if places:
        share(instances)
    preparation.note_instances(found.gpu, instances, can_change=bool(socket))
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
    """Write down what stands after a change.

    Args:
        instances: The pack's instances.
        preparation: The attempt's setup.
    """
    problem, notes = instances.work(), instances.follow_daemons()
    if problem is None and not notes:
        return
    preparation.add_notes(*notes)
    can_change = preparation.setup.can_change or problem is not None
    preparation.note_instances(instances.gpu, instances, can_change=can_change)
    if problem:
        preparation.add_notes(f"its MIG instances were not changed: {problem}")
    preparation.write()
