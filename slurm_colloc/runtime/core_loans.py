"""Moving cores between the members of a pack, by what they need: the affinity of their threads.

A member is never bound to fewer cores than it asked for. One that is short of cores gets some of
those that none uses, besides its own; their owner may use them at any moment, and they are taken
back within a second of its doing so. Threads that have bound themselves are left alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from slurm_colloc.host.system.node_processes import read_stat_fields
from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.planning.lend_cores import (
    CoreUse,
    advise_workers,
    choose_borrower,
    choose_loan,
    compute_gain,
    list_idle,
    list_wanted_back,
)
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_progress import ProgressReader
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pause_members import StepProcesses, list_wrappers_of
from slurm_colloc.store.runner_requests import CoreLoan, WorkersAdvice

LOOK_S = 1.0
"""How often it is looked whether a member is short of cores."""
LENDING_LOOK_S = 0.4
"""How often, while some are lent, whether their owner needs them: it has them back in two looks."""
JUDGED_AFTER_S = 14.0
"""From a loan until its effect is judged: the monitor's rates are means of ten seconds."""
REFUSED_S = 120.0
"""For so long a member gets no more cores that they have not helped."""
ROUNDS_MOST = 5
"""Looks for threads that were born meanwhile."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(eq=False, kw_only=True)
class CoreLender:
    """Lends cores to members that wait for data, and takes them back.

    Attributes:
        pack: The attempt of the pack.
        progress: Has the monitor's newest figures of members.
        measured_degree: Whether members are paused for a measurement, which tells of their own
            cores.
    """

    pack: PackContext
    progress: ProgressReader
    measured_degree: MeasuredDegree

    loans: dict[int, list[int]] = field(default_factory=dict)
    """CPUs that a member has borrowed, by its number."""

    def __post_init__(self) -> None:
        self._processes = StepProcesses(str(self.pack.path))
        self._cpus = {cpu for core in self.pack.allocation.cores for cpu in core}
        self._owners: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        """Of those that have borrowed some: as which of its starts."""
        self._told: dict[int, CoreLoan] = {}
        self._on_trial: tuple[int, frozenset[int]] | None = None
        self._before: dict[int, float] = {}
        self._refused: dict[int, float] = {}
        self._advice: dict[int, WorkersAdvice] = {}
        self._changed_at = self._looked_at = -JUDGED_AFTER_S
        self._judged = 0.0
        self._cpu_s: dict[int, tuple[float, float]] = {}

    def list_loans(self) -> tuple[CoreLoan, ...]:
        """What was lent in this pack, for `csub why` and reports."""
        return tuple(self._told[number] for number in sorted(self._told))

    def list_advice(self) -> tuple[WorkersAdvice, ...]:
        """Members to which more cores are of no use, as their workers are too few."""
        return tuple(self._advice[number] for number in sorted(self._advice))

    def list_due(self) -> list[float]:
        """When it is to be looked again (monotonic clock)."""
        return [self._looked_at + LENDING_LOOK_S] if self.loans else []

    def work(self) -> None:
        """Lend, judge what was lent, take back what is needed."""
        now = self.pack.clock()
        is_measuring = self.measured_degree.is_measuring
        look_s = LENDING_LOOK_S if self.loans else LOOK_S
        if now < self._looked_at + look_s and not (is_measuring and self.loans):
            return
        self._looked_at = now
        members = [m for m in self.pack.members.with_process() if m.record.cpus and m.wrapper_pid]
        self._forget_ended(members)
        if is_measuring:
            self._end_loans(members, "it is being measured")
            return
        if self.loans:
            self._take_back(members)
        at, figures = self.progress.looked_at, self.progress.figures
        if at > self._judged and now >= self._changed_at + JUDGED_AFTER_S:
            self._judged = at
            self._decide(members, figures)

    # -- deciding -----------------------------------------------------------------------------

    def _decide(self, members: Sequence[Member], figures: Mapping[str, Any]) -> None:
        now = self.pack.clock()
        uses = [_build_use(member, figures) for member in members]
        self._advise(uses)
        rates = {use.number: use.steps_per_s for use in uses if use.steps_per_s}
        if self._on_trial is not None and not self._judge(members, rates):
            return
        refused = [number for number, until in self._refused.items() if until > now]
        borrower = choose_borrower(uses, self.loans, refused)
        if borrower is None:
            return
        lent = {cpu for cpus in self.loans.values() for cpu in cpus}
        borrowed = self.loans.get(borrower.number, [])
        cpus = choose_loan(borrower, len(borrowed), list_idle(uses, self._cpus, lent))
        if not cpus:
            return
        self._on_trial = borrower.number, frozenset(cpus)
        self._before, self._changed_at = rates, now
        for use in uses:
            self._owners |= {cpu: use.number for cpu in use.own if cpu in cpus}
        self._bind(members, borrower.number, [*borrowed, *cpus])
        self._tell(borrower, len(self._cpus))

    def _advise(self, uses: Sequence[CoreUse]) -> None:
        """What is said stays as it is while it holds, and of a member that has ended."""
        lent = {cpu for cpus in self.loans.values() for cpu in cpus}
        idle = list_idle(uses, self._cpus, lent)
        for use in uses:
            borrowed = self.loans.get(use.number, [])
            is_refused = use.number in self._refused
            advised = advise_workers(use, borrowed, idle, is_refused=is_refused)
            known = self._advice.get(use.number)
            if advised is None or use.workers is None:
                self._advice.pop(use.number, None)
            elif known is None or known.workers != use.workers:
                cores = len({*use.own, *borrowed, *idle})
                self._advice[use.number] = WorkersAdvice(use.number, use.workers, cores, advised)

    def _judge(self, members: Sequence[Member], rates: Mapping[int, float]) -> bool:
        """Whether the newest loan stays; else its CPUs are given back."""
        assert self._on_trial is not None
        (number, cpus), self._on_trial = self._on_trial, None
        gain = compute_gain(number, self._before, rates)
        if gain is None:
            if ours := cpus & set(self.loans.get(number, ())):
                self._refused[number] = self.pack.clock() + REFUSED_S
                self._give_back(members, number, ours, "it was no faster")
            return False
        loan = self._told[number]
        self._told[number] = replace(
            loan, gain=round((1.0 + (loan.gain or 0.0)) * (1.0 + gain) - 1.0, 3)
        )
        return True

    def _tell(self, borrower: CoreUse, of: int) -> None:
        have = len(borrower.own) + len(self.loans[borrower.number])
        known = self._told.get(borrower.number)
        loan = CoreLoan(
            member=borrower.number,
            own=len(borrower.own),
            cores=have,
            most=max(have, known.most if known else 0),
            of=of,
            wait_share=known.wait_share if known else round(borrower.wait_share or 0.0, 3),
            gain=known.gain if known else None,
        )
        self._told[borrower.number] = loan
        self.pack.journal.write(
            "cores", member=loan.member, cores=have, own=loan.own, wait_share=loan.wait_share
        )

    # -- taking back --------------------------------------------------------------------------

    def _take_back(self, members: Sequence[Member]) -> None:
        """What an owner uses again, or has another owner by now."""
        by_number = {member.number: member for member in members}
        owners = {cpu: member.number for member in members for cpu in member.record.cpus}
        lent = {cpu for cpus in self.loans.values() for cpu in cpus}
        lenders = {owners[cpu] for cpu in lent if cpu in owners}
        back = {
            cpu for cpu in lent if owners.get(cpu, self._owners.get(cpu)) != self._owners.get(cpu)
        }
        used = self._count_busy([by_number[number] for number in sorted(lenders)])
        uses = [
            CoreUse(m.number, m.record.cpus, used.get(m.number), is_paused=m.paused_at is not None)
            for m in members
        ]
        back |= list_wanted_back(uses, self.loans)
        for number in list(self.loans):
            if ours := back & set(self.loans[number]):
                self._give_back(members, number, ours, "their owner uses them again")

    def _give_back(
        self, members: Sequence[Member], number: int, cpus: AbstractSet[int], reason: str
    ) -> None:
        self._bind(members, number, [cpu for cpu in self.loans[number] if cpu not in cpus])
        if self._on_trial is not None and self._on_trial[0] == number:
            self._on_trial = None
        self._changed_at = self.pack.clock()
        for cpu in cpus:
            self._owners.pop(cpu, None)
        own = self._told[number].own
        self._told[number] = replace(
            self._told[number], cores=own + len(self.loans.get(number, ()))
        )
        self.pack.journal.write(
            "cores_back", member=number, cores=self._told[number].cores, reason=reason
        )

    def _end_loans(self, members: Sequence[Member], reason: str) -> None:
        for number in list(self.loans):
            self._give_back(members, number, set(self.loans[number]), reason)

    def _forget_ended(self, members: Sequence[Member]) -> None:
        """Who has ended, or was started again since, has nothing that could be given back."""
        starts = {member.number: member.record.starts for member in members}
        for number in [n for n in self.loans if starts.get(n) != self._starts[n]]:
            del self.loans[number]
            self._told[number] = replace(self._told[number], cores=self._told[number].own)
            if self._on_trial is not None and self._on_trial[0] == number:
                self._on_trial = None

    def _count_busy(self, members: Sequence[Member]) -> dict[int, float]:
        """Cores that each has kept busy since the last look; those seen first are left out."""
        now, found = self.pack.clock(), {}
        for number, processes in self._processes.find(list_wrappers_of(members)).items():
            cpu_s = sum(_read_cpu_s(process.id.pid) for process in processes)
            before = self._cpu_s.get(number)
            self._cpu_s[number] = (now, cpu_s)
            # A look long ago tells of other times.
            if before is not None and before[0] >= now - 3 * LOOK_S:
                found[number] = max(0.0, cpu_s - before[1]) / (now - before[0])
        return found

    # -- binding ------------------------------------------------------------------------------

    def _bind(self, members: Sequence[Member], number: int, borrowed: list[int]) -> None:
        """Let all threads of a member run on its own cores and these."""
        member = next(member for member in members if member.number == number)
        own = set(member.record.cpus)
        was, wanted = own | set(self.loans.get(number, ())), own | set(borrowed)
        if borrowed:
            self.loans[number], self._starts[number] = borrowed, member.record.starts
        else:
            self.loans.pop(number, None)
        for _ in range(ROUNDS_MOST):
            found = self._processes.find(list_wrappers_of([member]))
            changed = [_bind_threads(p.id.pid, was, wanted) for p in found.get(number, ())]
            if not any(changed):
                break


def _build_use(member: Member, figures: Mapping[str, Any]) -> CoreUse:
    found = figures.get(str(member.number)) or {}
    if found.get("start") != member.record.starts:
        found = {}
    return CoreUse(
        member.number,
        member.record.cpus,
        found.get("cpu_cores"),
        found.get("wait_share"),
        found.get("steps_per_s"),
        is_paused=member.paused_at is not None,
        workers=found.get("loader_workers"),
    )


def _bind_threads(pid: int, was: set[int], wanted: set[int]) -> int:
    """How many threads had the affinity of before, and have that which is wanted now."""
    changed = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                # Another one was chosen by the program itself.
                if os.sched_getaffinity(int(thread)) == was != wanted:
                    os.sched_setaffinity(int(thread), wanted)
                    changed += 1
    return changed


def _read_cpu_s(pid: int) -> float:
    """Processor time of a process, without its children's; 0 where it is gone."""
    try:
        return sum(map(int, read_stat_fields(pid)[11:13])) / _TICKS
    except OSError:
        return 0.0
