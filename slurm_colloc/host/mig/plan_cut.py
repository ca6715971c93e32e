"""Whether a GPU may be divided for a job, and what goes where: before any call changes it; pure.

Also: what NVML says of a GPU's MIG, and what a job is to have of it; values; what is changed of a
GPU's MIG for a job, as it stands in the checkpoint; values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.model.mig_layout import (
    LayoutWord,
    group_words,
    parse_layout,
    place,
    render_layout,
    resolve,
)
from slurm_colloc.model.mig_profiles import (
    InstanceProfile,
    PlacedInstance,
    Placement,
    describe_profile,
    parse_profile,
)
from slurm_colloc.model.printable import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- What NVML says of a GPU's MIG, and what a job is to have of it; values, pure ----------------
#
# What cannot be read is None, never 0 or empty.

NO_ANSWER = -1
GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES = 15, 19, 23
"""NVML's error numbers (nvml.h, nvmlReturn_t); NO_ANSWER is ours, for a call that hangs."""


_HOPPER = (9, 0)
"""From here on a mode is changed without a reset, and lost with the driver (NVIDIA's MIG guide,
r580)."""


class MigProblem(NodeError):
    """A call of NVML's has failed.

    Args:
        message: In words.
        code: NVML's number.
    """

    def __init__(self, message: str, code: int = NO_ANSWER) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ComputeInstance:
    """What a process computes on.

    Args:
        id: NVML's number within its GPU instance.
        slices: Its compute slices.
        sms: Its streaming multiprocessors; None where not told.
        uuid: What CUDA_VISIBLE_DEVICES takes, MIG-...; None where not told.
    """

    id: int
    slices: int
    sms: int | None
    uuid: str | None


@dataclass(frozen=True)
class GpuInstance:
    """A part of a GPU's memory with what computes on it.

    Args:
        id: NVML's number.
        profile_id: Its profile.
        placement: Its memory slices.
        compute: Its compute instances, by id.
    """

    id: int
    profile_id: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()

    def describe(self, profiles: Sequence[InstanceProfile]) -> str:
        """It in words, such as `instance 1 (3g.40gb at 4)`."""
        name = next((p.name for p in profiles if p.profile_id == self.profile_id), "unknown")
        return f"instance {self.id} ({name} at {self.placement.start})"


@dataclass(frozen=True)
class MigGpu:
    """A GPU and what it is divided into.

    Args:
        uuid: Its UUID.
        name: Its model.
        pci_device_id: Its PCI device and vendor, such as 0x233010DE.
        minor_number: N of /dev/nvidiaN.
        compute_capability: Such as (9, 0).
        is_on: Its MIG mode; None where it has none.
        is_pending_on: The mode after the next reset.
        is_virtual: It is a vGPU, or divided into some.
        profiles: What it can be divided into.
        instances: What it is divided into; None where that cannot be read, empty with MIG off.
        processes: Pids of those who compute on it.
        problem: Why something is not known; empty where all is.
    """

    uuid: str
    name: str | None = None
    pci_device_id: int | None = None
    minor_number: int | None = None
    compute_capability: tuple[int, int] | None = None
    is_on: bool | None = None
    is_pending_on: bool | None = None
    is_virtual: bool = False
    profiles: tuple[InstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] | None = None
    processes: tuple[int, ...] | None = None
    problem: str = ""

    @property
    def switches_freely(self) -> bool:
        """Its mode is changed without a reset, and is off after a reboot."""
        return (self.compute_capability or (0, 0)) >= _HOPPER

    def find_profile(self, profile_id: int) -> InstanceProfile | None:
        """The profile of an id."""
        return next((one for one in self.profiles if one.profile_id == profile_id), None)

    def name_whole(self) -> str:
        """The word of the one instance that has all of it; empty where it has no profiles."""
        by_size = sorted(self.profiles, key=lambda one: (-one.compute_slices, -one.memory_mb))
        return by_size[0].name if by_size else ""


def parse_mig_gpu(value: Mapping[str, Any]) -> MigGpu:
    """Read what the child printed of a GPU.

    Raises:
        KeyError: It is something else.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    fields = dict(value)
    capability = fields["compute_capability"]
    fields["compute_capability"] = None if capability is None else tuple(capability)
    fields["profiles"] = tuple(map(parse_profile, fields["profiles"]))
    if fields["instances"] is not None:
        fields["instances"] = tuple(map(_parse_instance, fields["instances"]))
    if fields["processes"] is not None:
        fields["processes"] = tuple(map(int, fields["processes"]))
    return MigGpu(**fields)


def _parse_instance(value: Mapping[str, Any]) -> GpuInstance:
    return GpuInstance(
        int(value["id"]),
        int(value["profile_id"]),
        Placement(*value["placement"]),
        tuple(ComputeInstance(*one) for one in value["compute"]),
    )


def describe_gpu(gpu: MigGpu) -> dict[str, Any]:
    """A GPU with its instances and what else it can be divided into, as setup.json has it."""
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "instances": describe_instances(gpu),
        "profiles": [describe_profile(profile) for profile in gpu.profiles],
    }


def describe_instances(gpu: MigGpu) -> list[dict[str, Any]]:
    """Its compute instances: one is what a process computes on."""
    return [
        {
            "uuid": compute.uuid,
            "profile": _name_profile(profile, compute.slices),
            "gpu_instance": instance.id,
            "compute_instance": compute.id,
            "placement": [instance.placement.start, instance.placement.size],
            "sms": compute.sms,
            "memory_mb": profile.memory_mb if profile else None,
        }
        for instance in gpu.instances or ()
        for profile in [gpu.find_profile(instance.profile_id)]
        for compute in instance.compute
    ]


def _name_profile(profile: InstanceProfile | None, compute_slices: int) -> str | None:
    if profile is None:
        return None
    is_whole = compute_slices == profile.compute_slices
    return profile.name if is_whole else f"{compute_slices}c.{profile.name}"


# ---- What is changed of a GPU's MIG for a job, as it stands in the checkpoint; values, pure ------


@dataclass(frozen=True)
class PlannedInstance:
    """A GPU instance that a job is to have, as it stands in the checkpoint.

    Args:
        profile_id: Its profile.
        placement: Where.
        compute: Slices of its compute instances.
        instance: NVML's number, once it was made; None before.
        uuids: Those of its compute instances, once they were made.
    """

    profile_id: int
    placement: Placement
    compute: tuple[int, ...]
    instance: int | None = None
    uuids: tuple[str, ...] = ()

    def is_like(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands has this one's profile and place."""
        return (self.profile_id, self.placement) == (instance.profile_id, instance.placement)

    def is_for(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is this one.

        Before it was made its place says so: ids are the driver's to give. After that its id and
        UUIDs do, because an administrator may have made another in its place. One whose compute
        instances have gone already has its id alone.
        """
        if not self.is_like(instance):
            return False
        if self.instance is None:
            return True
        found = {one.uuid for one in instance.compute if one.uuid is not None}
        return self.instance == instance.id and found <= set(self.uuids)

    def identify(self, gpu: MigGpu) -> PlannedInstance:
        """This one with id and UUIDs, where it stands whole."""
        for one in gpu.instances or ():
            if self.is_for(one):
                uuids = tuple(part.uuid for part in one.compute if part.uuid is not None)
                return replace(self, instance=one.id, uuids=uuids)
        return self


@dataclass(frozen=True)
class MigClaim:
    """What is changed on a GPU for a job; before that it had no instance at all.

    Args:
        gpu: Its UUID.
        minor_number: N of /dev/nvidiaN.
        switches: MIG was off, and is turned on for the job.
        planned: The instances that are the job's, made already or not.
        is_lost_at_boot: MIG was on, and goes off where the driver is loaded again, as at a reboot.
        may_return: The site lets it be turned on again then.
        kept_in: Where that is written down (kept_modes); empty for nowhere.
    """

    gpu: str
    minor_number: int
    switches: bool
    planned: tuple[PlannedInstance, ...]
    is_lost_at_boot: bool = False
    may_return: bool = False
    kept_in: str = ""

    def owns(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is the job's."""
        return any(one.is_for(instance) for one in self.planned)

    def identify(self, gpu: MigGpu) -> MigClaim:
        """This claim with ids and UUIDs of what was made."""
        planned = tuple(one.identify(gpu) for one in self.planned)
        return replace(self, planned=planned)


class CutFailed(NodeError):
    """A claim was not made whole.

    Args:
        message: Why, in one sentence.
        claim: What of it was made, or may have been: what else stands in a place of its is not the
            job's.
    """

    def __init__(self, message: str, claim: MigClaim) -> None:
        super().__init__(message)
        self.claim = claim


def describe_claim(claim: MigClaim) -> dict[str, Any]:
    """A claim as it stands in the checkpoint."""
    return {
        "gpu": claim.gpu,
        "minor_number": claim.minor_number,
        "switches": claim.switches,
        "may_return": claim.may_return,
        "kept_in": claim.kept_in,
        "planned": [
            {
                "profile_id": one.profile_id,
                "placement": [one.placement.start, one.placement.size],
                "compute": list(one.compute),
                "instance": one.instance,
                "uuids": list(one.uuids),
            }
            for one in claim.planned
        ],
    }


def parse_claim(value: Mapping[str, Any]) -> MigClaim:
    """Read one from a checkpoint.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    return MigClaim(
        str(value["gpu"]),
        int(value["minor_number"]),
        bool(value["switches"]),
        tuple(map(_parse_planned, value["planned"])),
        may_return=bool(value["may_return"]),
        kept_in=str(value["kept_in"]),
    )


def _parse_planned(value: Mapping[str, Any]) -> PlannedInstance:
    start, size = value["placement"]
    return PlannedInstance(
        int(value["profile_id"]),
        Placement(int(start), int(size)),
        tuple(map(int, value["compute"])),
        None if value["instance"] is None else int(value["instance"]),
        tuple(map(str, value["uuids"])),
    )


# ----
# Whether a GPU may be divided for a job, and what goes where: before any call changes it; pure.


def plan_cut(
    gpu: MigGpu,
    layout: str,
    *,
    may_switch: bool,
    allowed: Sequence[str] = (),
) -> MigClaim:
    """Choose what a job gets of a GPU, or say why it gets nothing; pure.

    Args:
        gpu: What NVML says.
        layout: The words of the layout.
        may_switch: MIG may be turned on where it is off.
        allowed: Names of profiles that the site allows; empty for all.

    Raises:
        NodeError: The GPU is not to be had for it, in one sentence.
    """
    problem = find_refusal(gpu, may_switch=may_switch)
    if problem:
        raise NodeError(problem)
    planned = plan_instances(gpu, layout, allowed=allowed)
    is_lost_at_boot = bool(gpu.is_on) and gpu.switches_freely
    return MigClaim(
        gpu.uuid,
        gpu.minor_number or 0,
        switches=not gpu.is_on,
        planned=planned,
        is_lost_at_boot=is_lost_at_boot,
        may_return=is_lost_at_boot and may_switch,
    )


def find_refusal(gpu: MigGpu, *, may_switch: bool) -> str:
    """Why a GPU is not divided whatever the layout; empty where it may be; pure."""
    who = gpu.uuid
    if gpu.is_on is None or gpu.is_pending_on is None:
        return f"{who} cannot be divided by MIG"
    if gpu.is_virtual:
        return f"{who} is a virtual GPU, whose MIG is its host's"
    if gpu.is_on != gpu.is_pending_on:
        return f"a change of the MIG mode of {who} waits for a reset"
    if gpu.problem or gpu.processes is None or gpu.instances is None or gpu.minor_number is None:
        return f"NVML does not say all of {who}'s MIG: {gpu.problem or 'no reason given'}"
    if not gpu.is_on and (problem := _find_switch_refusal(gpu, may_switch)):
        return f"MIG is off on {who}, and {problem}"
    return _find_use(gpu)


def _find_switch_refusal(gpu: MigGpu, may_switch: bool) -> str:
    if not may_switch:
        lost = ", and from Hopper on a reboot turns it off" if gpu.switches_freely else ""
        return f"the site's policy takes only GPUs where it is on{lost}"
    if not gpu.switches_freely:
        return "before Hopper it takes a reset to turn it on"
    return ""


def _find_use(gpu: MigGpu) -> str:
    if gpu.instances:
        told = gpu.instances[0].describe(gpu.profiles)
        return f"{gpu.uuid} is divided already, and not for this job: {told}"
    if gpu.processes:
        return f"process {gpu.processes[0]} is on {gpu.uuid}"
    return ""


def plan_instances(
    gpu: MigGpu,
    layout: str,
    *,
    allowed: Sequence[str] = (),
) -> tuple[PlannedInstance, ...]:
    """Find a place for each instance of a layout, the biggest first; pure.

    Args:
        gpu: What NVML says.
        layout: The words.
        allowed: Names of profiles that the site allows; empty for all.

    Raises:
        NodeError: There is no such layout here, or no room for it.
    """
    try:
        words = parse_layout(layout)
        profiles = resolve(words, gpu.profiles)
    except UsageProblem as problem:
        raise NodeError(str(problem)) from problem
    for profile in profiles:
        if allowed and profile.name not in allowed:
            name = escape_controls(profile.name)
            raise NodeError(f"the site's policy does not allow the MIG profile {name}")
    placed = place(profiles)
    if placed is None:
        raise NodeError(f"the MIG layout {render_layout(words)} does not fit on {gpu.uuid}")
    return tuple(_match_groups(group_words(words), profiles, placed))


def _match_groups(
    groups: Sequence[Sequence[LayoutWord]],
    profiles: Sequence[InstanceProfile],
    placed: Sequence[PlacedInstance],
) -> list[PlannedInstance]:
    """The compute instances of each GPU instance: equal ones are interchangeable."""
    left = list(zip(profiles, groups, strict=True))
    planned = []
    for one in placed:
        number = next(n for n, (profile, _) in enumerate(left) if profile == one.profile)
        _, group = left.pop(number)
        planned.append(
            PlannedInstance(
                one.profile.profile_id,
                one.placement,
                # The biggest first, too: small ones would lie where a large one has to.
                tuple(sorted((word.compute_slices for word in group), reverse=True)),
            )
        )
    return planned
