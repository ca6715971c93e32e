"""Which packs the id of a Slurm job stands for; light, for completion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobIndex:
    """Which packs a Slurm job stands for (jobs/CLUSTER.4711.json).

    Attributes:
        submission: The csub call that they came from.
        indices: Their elements of the job array; 0 where the job is no array.
        parts: Where the call became several Slurm jobs, the name that each has in `submission`, and
            its elements; its own among them.
    """

    submission: str
    indices: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def list_parts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The Slurm jobs that the id stands for: the name of each in the state, its elements."""
        return self.parts or ((self.submission, self.indices),)

    def list_packs(self) -> list[str]:
        """The packs' ids, in order; some may not be there, or not yet."""
        return [build_pack_id(name, index) for name, each in self.list_parts() for index in each]


def build_pack_id(submission: str, index: int) -> str:
    """Name of a pack's directory."""
    return f"{submission}.{index}"
