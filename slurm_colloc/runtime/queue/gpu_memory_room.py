"""Whether one more member fits onto the GPU: no member starts that does not surely fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from slurm_colloc.model.degree.degree_reasons import MEMORY_FIRST, NO_MEMORY
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.watch.member_progress import ProgressReader

PATIENCE_S = 20.0
"""How long the first of a kind is waited for that takes nothing of the GPU's memory yet; then the
others start as they were planned."""
LOADING_S = 60.0
"""The same for one that takes some, and has made no step: it may still take more."""

LEAST_MB = 2048
"""A member of a kind that was never measured is not tried with less."""


class GpuMemoryRoom:
    """What members take of the GPU's memory, and what is left.

    Args:
        shown_id: The pack's job id as users know it.
        members: The pack's members.
        progress: Sees what they take.
        find_usable_mb: GPU memory that members may take together on one GPU; None where that is
            unknown.
        find_gpus: The pack's GPUs by UUID; none where they are not known.
        find_obstacle: Why nothing is measured in this pack; empty where it is.
        journal: The pack's log.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        shown_id: str,
        members: PackMembers,
        progress: ProgressReader,
        find_usable_mb: Callable[[], int | None],
        find_obstacle: Callable[[], str],
        journal: Journal,
        find_gpus: Callable[[], tuple[str, ...]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shown_id = shown_id
        self._members = members
        self._progress = progress
        self._find_usable_mb = find_usable_mb
        self._find_gpus = find_gpus
        self._find_obstacle = find_obstacle
        self._journal = journal
        self._clock = clock
        self._waits_since: dict[tuple[int, int], float] = {}
        self._given_up: set[tuple[int, int]] = set()

    def find_need_mb(self, member: Member) -> int | None:
        """What a member may take at most: as planned, or measured of it or of its family."""
        planned = member.spec.plan.gpu_memory_limit_mb
        return planned if planned is not None else self._progress.find_gpu_need_mb(member)

    def describe(self, member: Member) -> str:
        """Why a waiting member does not fit, or is not known to; empty where it may start."""
        usable_mb = self._find_usable_mb()
        running = self._members.running()
        if usable_mb is None or not running or self._find_obstacle():
            return ""
        needs: dict[int, int] = {}
        for other in running:
            need_mb = self._find_taken_mb(other)
            if need_mb is None and not self._is_waited_for(other):
                # Nothing tells: it has what it was given.
                need_mb = self._find_given_mb(other, usable_mb)
            if need_mb is None:
                name = other.name(self._shown_id)
                return f"{MEMORY_FIRST}what {name} takes is being measured"
            needs[other.number] = need_mb
        need_mb = self.find_need_mb(member)
        wanted_mb = LEAST_MB if need_mb is None else need_mb
        taken = self._sum_by_gpu(needs)
        # Of its GPUs the fullest decides.
        gpu = max(self._choose_roomiest(member, taken), key=taken.__getitem__)
        if taken[gpu] + wanted_mb > usable_mb:
            count = sum(gpu in self._list_gpus(other) for other in running)
            return (
                f"{NO_MEMORY}{count} take {taken[gpu]} of {usable_mb} MB, and it may take "
                f"{wanted_mb} MB"
            )
        return ""

    def is_too_large(self, member: Member) -> bool:
        """Whether a member takes more than a whole GPU of this pack has."""
        usable_mb, need_mb = self._find_usable_mb(), self.find_need_mb(member)
        return usable_mb is not None and need_mb is not None and need_mb > usable_mb

    def choose_gpus(self, member: Member) -> tuple[str, ...]:
        """The GPUs of the pack that a member gets which starts now: those with most room.

        None where they are not known.
        """
        usable_mb = self._find_usable_mb() or 0
        needs = {}
        for other in self._members.running():
            need_mb = self._find_taken_mb(other)
            given_mb = self._find_given_mb(other, usable_mb)
            needs[other.number] = given_mb if need_mb is None else need_mb
        chosen = self._choose_roomiest(member, self._sum_by_gpu(needs))
        return tuple(gpu for gpu in self._find_gpus() if gpu in chosen)

    def choose_limit_mb(self, member: Member) -> int | None:
        """What a member that starts now may take; None where its share by the plan stands."""
        need_mb = self.find_need_mb(member)
        if need_mb is not None:
            return need_mb
        usable_mb = self._find_usable_mb()
        needs = self._find_all_taken_mb()
        if usable_mb is None or not needs:
            return None
        # The only one that is not known yet: all that is left.
        taken = self._sum_by_gpu(needs)
        return usable_mb - max(taken[gpu] for gpu in self._choose_roomiest(member, taken))

    def find_likely_degree(self, starting: Member) -> int | None:
        """As many as are likely to run at once; None for as many as were planned.

        Args:
            starting: A member that is about to start.
        """
        waiting = [self._members.by_number[number] for number in self._members.waiting]
        running = self._members.running()
        all_here = (*running, *waiting, starting)
        unknown = [m for m in all_here if m.spec.plan.gpu_memory_limit_mb is None]
        if not unknown or self._find_obstacle():
            return None
        if not running:
            return 1
        room = self.count_room(unknown[0])
        places = len(self._members.places)
        return None if room is None else max(1, min(places, len(running) + room))

    def count_room(self, like: Member) -> int | None:
        """How many more like a member fit; None where that is unknown."""
        usable_mb, need_mb = self._find_usable_mb(), self.find_need_mb(like)
        needs = self._find_all_taken_mb()
        if usable_mb is None or need_mb is None or needs is None:
            return None
        taken = self._sum_by_gpu(needs)
        rooms = [max(0, (usable_mb - mb) // max(1, need_mb)) for mb in taken.values()]
        gpus = max(1, like.spec.plan.gpus)
        return min(rooms) if gpus >= len(rooms) else sum(rooms) // gpus

    def count_at_once(self) -> int:
        """How many of the pack may be there at once: as it has places, and room where known."""
        places, running = len(self._members.places), self._members.running()
        room = self.count_room(running[0]) if running else None
        return places if room is None else min(places, len(running) + room)

    # -- by GPU -------------------------------------------------------------------------------

    def _list_gpus(self, member: Member) -> tuple[str, ...]:
        """The GPUs that a running member uses; one without a name where they are not known."""
        gpus = self._find_gpus() or ("",)
        own = () if member.gpu is None else member.gpu.uuids
        return tuple(gpu for gpu in gpus if gpu in own) or gpus

    def _sum_by_gpu(self, needs: Mapping[int, int]) -> dict[str, int]:
        """What is taken of each GPU, in MB.

        Args:
            needs: By number what running members take of each of their GPUs.
        """
        taken = dict.fromkeys(self._find_gpus() or ("",), 0)
        for number, need_mb in needs.items():
            for gpu in self._list_gpus(self._members.by_number[number]):
                taken[gpu] += need_mb
        return taken

    def _choose_roomiest(self, member: Member, taken: Mapping[str, int]) -> tuple[str, ...]:
        """As many GPUs as a member uses: of which least is taken, then where fewest run."""
        count: dict[str, int] = dict.fromkeys(taken, 0)
        for other in self._members.running():
            for gpu in self._list_gpus(other):
                count[gpu] += 1
        order = sorted(taken, key=lambda gpu: (taken[gpu], count[gpu]))
        return tuple(order[: max(1, member.spec.plan.gpus)])

    def _find_given_mb(self, member: Member, usable_mb: int) -> int:
        """What a member was given of each of its GPUs."""
        limit_mb = None if member.gpu is None else member.gpu.gpu_memory_limit_mb
        gpus = max(1, len(self._find_gpus()))
        share_mb = usable_mb * gpus // max(1, len(self._members.places))
        return limit_mb or min(usable_mb, share_mb)

    def _find_all_taken_mb(self) -> dict[int, int] | None:
        """What each running member takes; None where that is not known of all."""
        needs = {m.number: self._find_taken_mb(m) for m in self._members.running()}
        known = {number: mb for number, mb in needs.items() if mb is not None}
        return known if len(known) == len(needs) else None

    def _find_taken_mb(self, member: Member) -> int | None:
        """What a running member takes: as stated; else its peak, and less once that is over."""
        stated_mb = member.spec.job.gpu_memory_mb
        if stated_mb is not None:
            return stated_mb
        use_mb = self._progress.find_gpu_use_mb(member)
        return self.find_need_mb(member) if use_mb is None else use_mb

    def _is_waited_for(self, member: Member) -> bool:
        """Whether it will still be known what a member takes."""
        key = member.number, member.record.starts
        waited_s = self._clock() - self._waits_since.setdefault(key, self._clock())
        uses_gpu = self._progress.uses_gpu_memory(member)
        if waited_s < (LOADING_S if uses_gpu else PATIENCE_S):
            return True
        if key not in self._given_up:
            self._given_up.add(key)
            self._journal.write("memory_unknown", member=member.number, seconds=round(waited_s))
        return False
