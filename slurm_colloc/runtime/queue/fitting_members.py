"""Which members that wait in another pack could start in this one now, as it has room for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberState
from slurm_colloc.planning.job_needs import choose_bound
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.sister_packs import SisterPack
from slurm_colloc.runtime.queue.time_left import END_MARGIN_S, TimeLeft
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.member_states import StateRecord, read_state
from slurm_colloc.store.pack.pack_directory import read_moved, read_spec, write_spec
from slurm_colloc.store.pack.pack_records import MemberSpec, PackRecord
from slurm_colloc.store.pack.runner_requests import is_cancel_asked, list_dependents


class FittingMembers:
    """Chooses among those that wait in other packs.

    Args:
        record: The pack's pack.json.
        members: Its members and places.
        time_left: What is left of its time.
    """

    def __init__(self, record: PackRecord, members: PackMembers, time_left: TimeLeft) -> None:
        self._record = record
        self._members = members
        self._time_left = time_left
        self._gpus = 1 if record.request is None else record.request.gpus

    def choose(
        self, sister: SisterPack, waiting: Sequence[int], *, may_have_run: bool = False
    ) -> Iterator[Member]:
        """Those of them that could start here now, each counted into what is left.

        Args:
            sister: The pack where they wait.
            waiting: Their numbers there.
            may_have_run: Those may come that have run there.
        """
        places = PackMembers([dataclasses.replace(p) for p in self._members.places])
        left_mb = self._find_host_memory_left_mb()
        asked_for = {n for d in list_dependents(sister.path) for _, n in d.conditions}
        for number in waiting:
            is_known = not sister.guests_of and number in self._members.by_number
            if number in asked_for or is_known:
                continue
            try:
                spec = read_spec(sister.path, number)
                record = read_state(sister.path, number, sister.attempt)
                is_kept = is_held(sister.path, number) or bool(read_moved(sister.path, number))
            except StateError:
                # It is told of where it is taken in.
                continue
            needed_mb = self._choose_host_memory_mb(sister, spec)
            taken = places.find_places(spec.plan.cpus)
            if (
                sum(place.wanted for place in taken) < spec.plan.cpus
                or is_kept
                or spec.job.depends
                or spec.plan.gpus > max(1, self._gpus)
                or (record is not None and record.is_final)
                or (record is not None and record.starts > 0 and not may_have_run)
                or (left_mb is not None and (needed_mb is None or needed_mb > left_mb))
                or not self._has_time(spec.job.time_limit_s)
                or is_cancel_asked([(sister.path, number)])
            ):
                continue
            places.occupy(number, taken)
            if left_mb is not None and needed_mb is not None:
                left_mb -= needed_mb
            record = record or StateRecord(MemberState.PENDING, sister.attempt)
            yield Member(number, spec, record)

    def settle_plan(self, sister: SisterPack, number: int) -> None:
        """Give a member of another submission what holds for it among neighbours, before it comes.

        Its own bound counts wherever it runs. A job that was to run alone was planned with its
        `--time` and no more.

        Args:
            sister: The pack where it waits, whose lock is held.
            number: Its number there.

        Raises:
            StateError: It cannot be read, or not be written.
        """
        spec, policy = read_spec(sister.path, number), sister.record.policy
        assert policy is not None
        bound = spec.plan.max_slowdown or choose_bound(spec.job, policy)
        plan = dataclasses.replace(spec.plan, max_slowdown=bound)
        if sister.record.request is None:
            time_s = spec.job.time_limit_s
            plan = dataclasses.replace(
                plan,
                host_memory_mb=self._choose_host_memory_mb(sister, spec),
                wall_limit_s=None if time_s is None else round(time_s * bound),
                gpu_memory_limit_mb=spec.job.gpu_memory_mb,
            )
        folder = sister.path / "members" / format_number(number)
        write_spec(folder, dataclasses.replace(spec, plan=plan))

    def _choose_host_memory_mb(self, sister: SisterPack, spec: MemberSpec) -> int | None:
        """What a member is given here; a job alone that does not say has a place's share."""
        stated_mb = spec.plan.host_memory_mb or spec.job.host_memory_mb
        total_mb = None if self._record.request is None else self._record.request.host_memory_mb
        if stated_mb is not None or total_mb is None or sister.record.request is not None:
            return stated_mb
        return total_mb // max(1, len(self._members.places))

    def _has_time(self, wanted_s: int | None) -> bool:
        left_s = self._time_left.left_s
        if left_s is None:
            return True
        return wanted_s is not None and wanted_s + END_MARGIN_S <= left_s

    def _find_host_memory_left_mb(self) -> int | None:
        """What members that have not ended leave; None where the pack asked for no amount."""
        assert self._record.request is not None
        total_mb = self._record.request.host_memory_mb
        if total_mb is None:
            return None
        members = self._members.by_number.values()
        return total_mb - sum(m.spec.plan.host_memory_mb or 0 for m in members if not m.is_final)
