"""How many members run at once best, by what earlier packs of the same scripts measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_colloc.model.degree.known_curve import KnownCurve
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.known_degree import KnownDegree, find_degree
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.runtime.watch.member_progress import ProgressReader


class KnownCurves:
    """Reads the curves of a user, each once.

    Args:
        root: The state directory.
        progress: Knows which script a member runs, and how slow it may be.
        find_gpu_model: NVML's name of the pack's GPU; None where it is not known.
        find_mode: How its members share it; None where that is not settled.
    """

    def __init__(
        self,
        root: Path,
        progress: ProgressReader,
        find_gpu_model: Callable[[], str | None],
        find_mode: Callable[[], SharingMode | None],
    ) -> None:
        self._root = root
        self._progress = progress
        self._find_gpu_model = find_gpu_model
        self._find_mode = find_mode
        self._curves: dict[tuple[str, ...], list[KnownCurve]] = {}

    def find_degree(self, members: Sequence[Member]) -> KnownDegree | None:
        """How many of these run at once; None where exactly their scripts were never measured."""
        model, mode = self._find_gpu_model(), self._find_mode()
        families = [self._progress.find_script(member) for member in members]
        if len(members) < 2 or model is None or mode is None or not all(families):
            return None
        kinds = Counter(families)
        curves = [c for c in self._read(tuple(sorted(kinds)), model) if c.mode is mode]
        if not curves:
            return None
        bounds = [self._progress.find_bound(member) for member in members]
        rates = {
            family: rate
            for family, member in zip(families, members, strict=True)
            if (rate := member.spec.plan.solo_steps_per_s) is not None
        }
        bound = min((bound for bound in bounds if bound is not None), default=math.inf)
        return find_degree(curves, kinds, bound, rates)

    def _read(self, families: tuple[str, ...], gpu_model: str) -> list[KnownCurve]:
        if families not in self._curves:
            from slurm_colloc.store.learned.curves import read_curves

            self._curves[families], _ = read_curves(self._root, gpu_model, families)
        return self._curves[families]
