"""GPUs with MIG in memory, which fail or stop where a test says: quick enough for any history.

It is held to what the simulated libnvidia-ml does by test_mig_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slurm_colloc.host.mig.plan_cut import (
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    ComputeInstance,
    GpuInstance,
    MigGpu,
    MigProblem,
)
from slurm_colloc.model.mig_profiles import MIG_TABLES, InstanceProfile, Placement

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 2, 3, 6


class Killed(BaseException):
    """The process is gone at this point."""


if TYPE_CHECKING:
    from slurm_colloc.host.mig.mig_session import MigSession
else:
    MigSession = object


@dataclass
class MigDouble(MigSession):
    """A MigSession on GPUs in memory.

    Attributes:
        gpus: By UUID.
        before: Called before each call with its name; may raise.
        after: The same after it took effect.
        busy: Compute instances, as (gpu, GPU instance, compute instance), that a process is on.
        is_lost: Every call fails.
    """

    gpus: dict[str, MigGpu]
    before: Callable[[str], None] = lambda _name: None
    after: Callable[[str], None] = lambda _name: None
    busy: set[tuple[str, int, int]] = field(default_factory=set)
    is_lost: bool = False
    _made: int = 0
    _parts: dict[tuple[str, int, int], range] = field(default_factory=dict)

    # -- NVML's calls ---------------------------------------------------------------------------

    def read(self) -> tuple[MigGpu, ...]:
        self._begin("read")
        self.after("read")
        return tuple(map(self._show, self.gpus.values()))

    def set_mode(self, gpu: str, on: bool) -> None:
        self._begin("set_mode")
        state = self.gpus[gpu]
        # In use: it says so by a status that is no error, and changes nothing.
        if not state.instances and not any(one[0] == gpu for one in self.busy):
            self.gpus[gpu] = replace(state, is_on=on, is_pending_on=on)
        self.after("set_mode")

    def create(self, gpu: str, profile_id: int, placement: Placement) -> int:
        self._begin("create")
        state = self._divided(gpu)
        profile = state.find_profile(profile_id)
        if profile is None or placement not in profile.placements:
            raise MigProblem("Invalid Argument", INVALID_ARGUMENT)
        standing = state.instances or ()
        same = [one for one in standing if one.profile_id == profile_id]
        if (
            any(one.placement.mask & placement.mask for one in standing)
            or len(same) >= profile.instances_max
            or (profile.media_extensions and self._has_media(state))
        ):
            raise MigProblem("Insufficient Resources", INSUFFICIENT_RESOURCES)
        # Ids are the driver's: they are not counted from one, and some are used again.
        taken = {one.id for one in standing}
        number = next(n for n in (1, 2, 5, 6, 9, 11, 12, 13, 14) if n not in taken)
        self._put(gpu, [*standing, GpuInstance(number, profile_id, placement)])
        self.after("create")
        return number

    def create_compute(self, gpu: str, instance: int, slices: int) -> None:
        self._begin("create_compute")
        state = self._divided(gpu)
        found = self._find(state, instance)
        profile = state.find_profile(found.profile_id)
        assert profile is not None
        place = self._find_compute_place(gpu, found, slices, profile.compute_slices)
        number = next(n for n in range(8) if n not in [one.id for one in found.compute])
        self._parts[gpu, instance, number] = place
        self._made += 1
        uuid = f"MIG-00000000-0000-0000-0000-{self._made:012x}"
        sms = profile.sms * slices // profile.compute_slices
        made = ComputeInstance(number, slices, sms, uuid)
        self._change(gpu, replace(found, compute=(*found.compute, made)))
        self.after("create_compute")

    def destroy_compute(self, gpu: str, instance: int, compute: int) -> None:
        self._begin("destroy_compute")
        found = self._find(self._divided(gpu), instance)
        if compute not in [one.id for one in found.compute]:
            raise MigProblem("Not Found", NOT_FOUND)
        if (gpu, instance, compute) in self.busy:
            raise MigProblem("In use by another client", IN_USE)
        left = tuple(one for one in found.compute if one.id != compute)
        self._change(gpu, replace(found, compute=left))
        self.after("destroy_compute")

    def destroy(self, gpu: str, instance: int) -> None:
        self._begin("destroy")
        found = self._find(self._divided(gpu), instance)
        if found.compute:
            raise MigProblem("In use by another client", IN_USE)
        state = self.gpus[gpu]
        self._put(gpu, [one for one in state.instances or () if one != found])
        self.after("destroy")

    # -- the GPUs -------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        self.before(name)
        if self.is_lost:
            raise MigProblem("GPU is lost", GPU_IS_LOST)

    def _show(self, state: MigGpu) -> MigGpu:
        processes = tuple(
            4000 + number
            for number, (gpu, _, _) in enumerate(sorted(self.busy))
            if gpu == state.uuid
        )
        return replace(state, processes=processes)

    def _divided(self, gpu: str) -> MigGpu:
        state = self.gpus[gpu]
        if not state.is_on:
            raise MigProblem("Not Supported", NOT_SUPPORTED)
        return state

    def _find_compute_place(
        self, gpu: str, instance: GpuInstance, slices: int, total: int
    ) -> range:
        """Where a compute instance lies: two slices at each second, more at each fourth."""
        if slices == 3 and total == 4:
            raise MigProblem("Not Supported", NOT_SUPPORTED)
        taken = {
            at
            for one in instance.compute
            for at in self._parts.get((gpu, instance.id, one.id), range(one.slices))
        }
        for start in range(0, total - slices + 1, {1: 1, 2: 2}.get(slices, 4)):
            if not taken & {*range(start, start + slices)}:
                return range(start, start + slices)
        raise MigProblem("Insufficient Resources", INSUFFICIENT_RESOURCES)

    def _find(self, state: MigGpu, instance: int) -> GpuInstance:
        for one in state.instances or ():
            if one.id == instance:
                return one
        raise MigProblem("Not Found", NOT_FOUND)

    def _change(self, gpu: str, instance: GpuInstance) -> None:
        standing = self.gpus[gpu].instances or ()
        self._put(gpu, [instance if one.id == instance.id else one for one in standing])

    def _put(self, gpu: str, instances: list[GpuInstance]) -> None:
        ordered = tuple(sorted(instances, key=lambda one: one.id))
        self.gpus[gpu] = replace(self.gpus[gpu], instances=ordered)

    def _has_media(self, state: MigGpu) -> bool:
        return any(
            profile.media_extensions
            for one in state.instances or ()
            if (profile := state.find_profile(one.profile_id)) is not None
        )


def build_gpu(
    number: int = 0,
    *,
    model: str = "H100-80",
    is_on: bool = True,
    profiles: tuple[InstanceProfile, ...] = (),
) -> MigGpu:
    """A GPU without instances."""
    return MigGpu(
        uuid=f"GPU-{number:08x}-0000-0000-0000-000000000000",
        name=f"NVIDIA {model}",
        minor_number=number,
        compute_capability=(8, 0) if model.startswith("A") else (9, 0),
        is_on=is_on,
        is_pending_on=is_on,
        profiles=profiles or MIG_TABLES[model],
        instances=(),
        processes=(),
    )
