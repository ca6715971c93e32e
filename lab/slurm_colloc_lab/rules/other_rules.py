"""Rules of others for who shares a GPU, for comparison with csub's own search only.

Each is the rule as it was published, not the system around it. None knows a bound on slowdowns,
a tail or thread limits. What no user of csub can go beyond holds for all: CPUs and host memory of
the GPU's share, clients of one MPS server or MIG instances, and GPU memory as measured.
`first-fit`, by the user's order and words and that memory alone, is planning.unknown_packs: what
csub does where nothing is known.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Sequence

from slurm_colloc.model.plan import Rule
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.hard_limits import Limits, Subject, find_broken

ADDITIVE_SM_MOST = 1.0
ADDITIVE_DRAM_MOST = 0.8
CARMA_SM_MOST = 0.80
CARMA_DRAM_MOST = 0.40
CARMA_ROOM_MB = 2048

_REMEMBERED_MAX = 100
"""Kinds of jobs up to which it is remembered which packs have refused each of them."""

_Partition = tuple[tuple[int, ...], ...]


def partition(
    rule: Rule, subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """Divide jobs into packs by a rule of others.

    Args:
        rule: The rule.
        subjects: The jobs; one of unknown load or GPU memory stays alone, as none of these rules
            can place it.
        limits: What one GPU has.
        gpu_memory_mb: Memory of one GPU; None where unknown.

    Raises:
        ValueError: It is no rule that works on loads.
    """
    rules: dict[Rule, Callable[[Sequence[Subject], Limits, int | None], _Partition]] = {
        Rule.EXCLUSIVE: place_exclusively,
        Rule.ADDITIVE: place_additively,
        Rule.CARMA: place_by_carma,
    }
    if rule not in rules:
        raise ValueError(f"{rule} does not place by loads")
    return rules[rule](subjects, limits, gpu_memory_mb)


def place_exclusively(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """A GPU for each job: what Slurm does without csub (sbatch(1), `--gres=gpu:1`)."""
    del limits, gpu_memory_mb
    return tuple((i,) for i in range(len(subjects)))


def place_additively(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """First fit, the longest first, while what the jobs use alone adds up to no more than a GPU.

    That utilisation adds up is the rule without a model: the sums of engine and SM activity are at
    most 1, that of DRAM activity 0.8. By length is first fit decreasing (Johnson, "Near-optimal
    bin packing algorithms", MIT, 1973).
    """
    del gpu_memory_mb
    order = sorted(range(len(subjects)), key=lambda i: (-subjects[i].run_s, i))
    return _place(subjects, order, limits, _adds_up, lambda _: 0)


def _adds_up(pack: _Pack, new: Load, new_mb: int) -> bool:
    del new_mb
    return (
        pack.engine + new.engine <= ADDITIVE_SM_MOST
        and pack.sm + new.sm <= ADDITIVE_SM_MOST
        and pack.dram + new.dram <= ADDITIVE_DRAM_MOST
    )


def place_by_carma(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """CARMA's rule (Yousefzadeh-Asl-Miandoab et al., arXiv 2508.19073, 2026), first come first.

    A job does not go to a GPU whose resident jobs keep 80 % of the SMs and 40 % of the DRAM active
    (in its program 45 % occupancy of the SMs does as well as the DRAM, which no usage profile
    holds), or whose free memory does not exceed the job's estimate by 2 GiB; of several that are
    left it goes to the one with the most memory (MAGM). The rule fills a server of given GPUs as
    jobs come, an idle one before any that is in use. Here GPUs are asked of Slurm, so that a
    further one is idle only where none in use takes the job.
    """

    def takes(pack: _Pack, new: Load, new_mb: int) -> bool:
        del new
        # What is measured on a GPU is what all together keep busy, never more than the whole of it.
        if gpu_memory_mb is None or (pack.sm >= CARMA_SM_MOST and pack.dram >= CARMA_DRAM_MOST):
            return False
        return gpu_memory_mb - pack.gpu_memory_mb >= new_mb + CARMA_ROOM_MB

    return _place(subjects, range(len(subjects)), limits, takes, lambda pack: pack.gpu_memory_mb)


@dataclasses.dataclass
class _Pack:
    """A pack that is being filled, with the sums of what its members take alone.

    Attributes:
        members: Positions of its members.
        engine: Engine activity.
        sm: SM activity.
        dram: DRAM activity.
        gpu_memory_mb: GPU memory that they may need, in MB.
    """

    members: list[int] = dataclasses.field(default_factory=list)
    engine: float = 0.0
    sm: float = 0.0
    dram: float = 0.0
    gpu_memory_mb: int = 0

    def add(self, position: int, load: Load, gpu_memory_mb: int) -> None:
        self.members.append(position)
        self.engine += load.engine
        self.sm += load.sm
        self.dram += load.dram
        self.gpu_memory_mb += gpu_memory_mb


def _place(
    subjects: Sequence[Subject],
    order: Iterable[int],
    limits: Limits,
    takes: Callable[[_Pack, Load, int], bool],
    rank: Callable[[_Pack], int],
) -> _Partition:
    """Give each job to the first pack of least rank that takes it, else to a new one.

    What a pack refuses it refuses for good, since members only come on top, and its rank never
    falls. So no pack is asked twice for the same kind of job.

    Args:
        subjects: The jobs; one of unknown load or GPU memory stays alone.
        order: Their positions, in the order in which they are placed.
        limits: What no rule goes beyond.
        takes: Whether a pack takes a job of this load and GPU memory in MB, by the rule.
        rank: Of a pack.
    """
    limits = dataclasses.replace(limits, finish_s=None)
    packs: list[_Pack] = []
    shared: list[int] = []
    kinds = {subject.kind for subject in subjects}
    # By kind: packs that have not refused it, by the rank that they had, and how many were seen.
    left: dict[Hashable, list[tuple[int, int]]] = {}
    seen: dict[Hashable, int] = {}
    for i in order:
        new = subjects[i]
        if new.load is None or new.gpu_memory_mb is None:
            packs.append(_Pack([i]))
            continue
        heap: list[tuple[int, int]] = []
        if new.kind is not None and len(kinds) <= _REMEMBERED_MAX:
            heap = left.setdefault(new.kind, heap)
            for place in shared[seen.get(new.kind, 0) :]:
                heapq.heappush(heap, (rank(packs[place]), place))
            seen[new.kind] = len(shared)
        else:
            heap = [
                (rank(packs[place]), place)
                for place in shared
                if takes(packs[place], new.load, new.gpu_memory_mb)
            ]
            heapq.heapify(heap)
        while heap:
            pack = packs[heap[0][1]]
            if heap[0][0] != rank(pack):
                heapq.heapreplace(heap, (rank(pack), heap[0][1]))
                continue
            if takes(pack, new.load, new.gpu_memory_mb) and not find_broken(
                [*(subjects[j] for j in pack.members), new], limits
            ):
                break
            heapq.heappop(heap)
        else:
            pack = _Pack()
            shared.append(len(packs))
            packs.append(pack)
        pack.add(i, new.load, new.gpu_memory_mb)
    return tuple(tuple(pack.members) for pack in packs)


def describe_sums(rule: Rule, subjects: Sequence[Subject]) -> str:
    """What a rule looked at in a pack, with the most that it allows; empty where at no load."""
    loads = [subject.load for subject in subjects if subject.load is not None]
    engine, sm, dram = (
        math.fsum(getattr(load, name) for load in loads) for name in ("engine", "sm", "dram")
    )
    if rule is Rule.ADDITIVE:
        return (
            f"alone they take engine {engine:.2f} and SM {sm:.2f} of {ADDITIVE_SM_MOST:g}, "
            f"DRAM {dram:.2f} of {ADDITIVE_DRAM_MOST:g}"
        )
    if rule is Rule.CARMA:
        return (
            f"alone they take SM {sm:.2f} of {CARMA_SM_MOST:g}, DRAM {dram:.2f} of "
            f"{CARMA_DRAM_MOST:g}; no job comes on top of those that reach both"
        )
    return ""
