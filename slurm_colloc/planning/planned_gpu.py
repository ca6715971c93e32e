"""The GPU that a MIG layout is planned for, as far as it is known before a node is.

What really can be cut there tells NVML on the node. What is planned is the words of a layout, and
they are the same on each GPU with seven slices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.mig_layout import parse_layout, place, resolve_word
from slurm_colloc.model.mig_profiles import MIG_TABLES, InstanceProfile, choose_mig_table
from slurm_colloc.planning.hard_limits import GPU_MEMORY_SHARE
from slurm_colloc.planning.job_needs import Question

_NOMINAL = "H100-80"
"""Shapes of a GPU of which nothing is known: those of all GPUs with seven slices are the same."""
_NEAR = 0.05


@dataclasses.dataclass(frozen=True)
class PlannedGpu:
    """A GPU that can be cut.

    Attributes:
        model: What its numbers are of; empty where it is not known.
        profiles: Its plain profiles; of those with media engines none is planned unasked.
        every: All of them.
        has_memory: Their memory is that of the GPU.
        has_names: Their names are, as far as the driver does not round them otherwise.
    """

    model: str
    profiles: tuple[InstanceProfile, ...]
    every: tuple[InstanceProfile, ...]
    has_memory: bool
    has_names: bool

    @property
    def slices(self) -> int:
        """Its compute slices."""
        return max(profile.compute_slices for profile in self.profiles)

    @property
    def memory_slices(self) -> int:
        """Its memory slices."""
        return max(profile.memory_slices for profile in self.profiles)

    @property
    def sms(self) -> int:
        """Its streaming multiprocessors."""
        return max(profile.sms for profile in self.profiles)

    def compute_room_mb(self, profile: InstanceProfile) -> int | None:
        """What needs may fill of an instance's memory, in MB; None where that is unknown."""
        return int(profile.memory_mb * GPU_MEMORY_SHARE) if self.has_memory else None

    @functools.cached_property
    def equal_rooms_mb(self) -> tuple[int | None, ...]:
        """What needs may fill of each of 0, 1, 2... equal instances, as far as there are so many.

        None where that is unknown.
        """
        rooms: list[int | None] = [0]
        while True:
            fitting = [one for one in self.profiles if place([one] * len(rooms)) is not None]
            if not fitting:
                return tuple(rooms)
            rooms.append(self.compute_room_mb(max(fitting, key=lambda one: one.memory_mb)))


def choose_planned_gpu(gpu_memory_mb: int | None, models: Sequence[str] = ()) -> PlannedGpu:
    """The GPU on which jobs will run: by its model, else by its memory, else one of seven slices.

    Args:
        gpu_memory_mb: All of its memory; None where unknown.
        models: What it may be called, the surest first.
    """
    for model in filter(None, models):
        profiles = choose_mig_table(model, gpu_memory_mb)
        if profiles:
            return _build(model, profiles)
    if gpu_memory_mb is None:
        return _build("", MIG_TABLES[_NOMINAL], has_memory=False)
    for model, profiles in MIG_TABLES.items():
        largest_mb = max(profile.memory_mb for profile in profiles)
        if abs(gpu_memory_mb - largest_mb) < largest_mb * _NEAR:
            return _build(model, profiles)
    return _build("", _scale(MIG_TABLES[_NOMINAL], gpu_memory_mb))


def recognise_gpu(layout: str) -> PlannedGpu | None:
    """The GPU whose profiles have the names that a layout speaks of; None where it names none.

    Args:
        layout: Its words.
    """
    named = [word for word in parse_layout(layout) if word.memory_gb is not None]
    for model, profiles in MIG_TABLES.items() if named else ():
        with contextlib.suppress(UsageProblem):
            for word in named:
                resolve_word(word, profiles)
            return _build(model, profiles)
    return None


def find_planned_gpu(question: Question, indices: Sequence[int]) -> PlannedGpu:
    """The GPU on which these jobs will run; see `choose_planned_gpu`.

    Those that ask for one GPU type get the same, whichever of them are asked for: what is planned
    for some of them has to hold on the GPU whose limits were looked at for all.
    """
    types = {question.jobs[index].gpu_type for index in indices}
    models = sorted(gpu_type for gpu_type in types if gpu_type)
    models += [
        profile.gpu_model
        for index, profile in question.profiles.items()
        if question.jobs[index].gpu_type in types
    ]
    return choose_planned_gpu(question.capacity.gpu_memory_mb, tuple(dict.fromkeys(models)))


def _scale(profiles: Sequence[InstanceProfile], gpu_memory_mb: int) -> tuple[InstanceProfile, ...]:
    """The same shapes on a GPU with another memory."""
    largest_mb = max(profile.memory_mb for profile in profiles)
    return tuple(
        dataclasses.replace(
            profile,
            memory_mb=profile.memory_mb * gpu_memory_mb // largest_mb,
        )
        for profile in profiles
    )


def _build(
    model: str, profiles: Sequence[InstanceProfile], *, has_memory: bool = True
) -> PlannedGpu:
    plain = [profile for profile in profiles if not profile.attributes]
    if not model:
        # Their names tell another GPU's memory: only what is named by its slices can be asked for.
        smallest: dict[int, InstanceProfile] = {}
        for profile in plain:
            first = smallest.setdefault(profile.compute_slices, profile)
            if profile.memory_mb < first.memory_mb:
                smallest[profile.compute_slices] = profile
        plain = list(smallest.values())
    return PlannedGpu(model, tuple(plain), tuple(profiles), has_memory, bool(model))


def name_profile(profile: InstanceProfile, gpu: PlannedGpu) -> str:
    """The word for a profile: its slices, or its name where another one has as many."""
    least = min(
        (one for one in gpu.profiles if one.compute_slices == profile.compute_slices),
        key=lambda one: (one.memory_mb, one.profile_id),
        default=None,
    )
    return f"{profile.compute_slices}g" if least == profile else profile.name
