"""What a runner sees of its members: what they take, their rates alone, what they are like."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.model.degree.measured_curve import RateAlone, RateSource
from slurm_colloc.model.degree.measurement_windows import MeasuredRate
from slurm_colloc.model.plan import Policy, Rule
from slurm_colloc.model.preallocation import describe_taken_at_once
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.watch.gpu_memory_use import GpuMemoryUse
from slurm_colloc.runtime.watch.latest_json import read_latest
from slurm_colloc.runtime.watch.window_rates import WindowRates
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.sample_files import latest_path


def choose_common_bound(policy: Policy | None) -> float | None:
    """The slowdown that is accepted for members that say nothing of it; None for any.

    Args:
        policy: Of the pack; the rules of others know no bound.
    """
    return policy.slowdown_bound if policy is not None and policy.rule is Rule.CSUB else None


class ProgressReader:
    """Looks at the members of a pack.

    Args:
        pack: The pack's directory.
        members: Its members.
        rates: Reads their counters.
        instruments: The settings let steps be counted.
        bound: The slowdown that is accepted for members without one of their own; None for any.
        find_may_take_mb: GPU memory that a member may take at most; None where unknown.
        note_evidence: Writes down what a member has shown, for `csub why` and reports.
    """

    def __init__(
        self,
        pack: Path,
        members: PackMembers,
        rates: WindowRates,
        *,
        instruments: bool,
        bound: float | None = None,
        find_may_take_mb: Callable[[Member], int | None] = lambda _: None,
        note_evidence: Callable[[Member, str], None] = lambda *_: None,
    ) -> None:
        self._pack = pack
        self._members = members
        self._rates = rates
        self._instruments = instruments
        self._bound = bound
        self._find_may_take_mb = find_may_take_mb
        self._note_evidence = note_evidence
        self._begun_at = time.time()
        self._stamp: tuple[int, int] | None = None
        self._families: dict[int, tuple[str, str]] = {}
        self._gpu_memory = GpuMemoryUse()
        self._told: set[int] = set()
        self.rates_alone: dict[int, RateAlone] = {}
        """Measured rates alone, by member number."""
        self.looked_at = 0.0
        """Of when the newest figures are, in seconds since the epoch; 0 for none."""

    def work(self) -> None:
        """See what the members that run take now."""
        latest = self._read()
        for member in self._members.with_process():
            number, start = member.number, member.record.starts
            found = {} if latest is None else latest["members"].get(str(number)) or {}
            if found.get("start") == start:
                assert latest is not None
                used_mb = found.get("gpu_memory_mb")
                self._gpu_memory.note_nvml(number, start, used_mb, float(latest["at"]))
            if (count := self._rates.read(member)) is not None:
                self._gpu_memory.note_count(number, start, count)
            self._tell_taken_at_once(member)

    def _tell_taken_at_once(self, member: Member) -> None:
        if member.number in self._told:
            return
        taken_mb = self._gpu_memory.find_at_once_mb(member.number, member.record.starts)
        if text := describe_taken_at_once(taken_mb, self._find_may_take_mb(member)):
            self._told.add(member.number)
            self._note_evidence(member, text)

    def _read(self) -> Mapping[str, Any] | None:
        path = latest_path(str(self._pack))
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            value = read_latest(self._pack)
            # An earlier attempt may have left some.
            if value is not None and value["at"] > max(self._begun_at, self.looked_at):
                self.looked_at = value["at"]
                return value
        return None

    def find_gpu_need_mb(self, member: Member) -> int | None:
        """What a member takes of the GPU's memory, with a margin, by what it or one like it took.

        None where neither has been seen yet.
        """
        own = self._gpu_memory.find_peak_mb(member.number)
        family = self.find_family(member)
        if own is not None or not family:
            return own
        alike = [n for n in self._gpu_memory.list_seen() if self.find_family_of(n) == family]
        return max((self._gpu_memory.find_peak_mb(n) or 0 for n in alike), default=None)

    def find_gpu_settled_mb(self, member: Member) -> int | None:
        """What a member may take that has settled, with a margin; None before."""
        return self._gpu_memory.find_settled_mb(member.number, member.record.starts)

    def find_gpu_process_mb(self, member: Member) -> float | None:
        """The most that its process was seen to take; None where nothing was seen."""
        return self._gpu_memory.find_process_mb(member.number, member.record.starts)

    def uses_gpu_memory(self, member: Member) -> bool:
        """Whether it has been seen to take any."""
        return self._gpu_memory.is_used(member.number, member.record.starts)

    def counts_steps(self, member: Member) -> bool:
        """Whether something counts its steps."""
        job = member.spec.job
        return (self._instruments and job.instrument) or job.progress_regex is not None

    def find_bound(self, member: Member) -> float | None:
        """The slowdown that is accepted for a member; None for any."""
        return member.spec.plan.max_slowdown or self._bound

    def note_alone(self, measured: MeasuredRate) -> None:
        """The rate of a member while all others were paused."""
        use = self._members.by_number[measured.member].gpu
        self.rates_alone[measured.member] = RateAlone(
            measured.member, measured.steps_per_s, measured.error, measured.window_s, time.time(),
            RateSource.PAUSING, None if use is None else use.thread_percentage,
        )  # fmt: skip

    def find_rate_alone(self, member: Member) -> RateAlone | None:
        """Its rate alone, by the plan or as measured: its own, or that of its family."""
        if (own := self.rates_alone.get(member.number)) is not None:
            return own
        family = self.find_family(member)
        for number, rate in self.rates_alone.items() if family else ():
            if self.find_family_of(number) == family:
                return RateAlone(
                    member.number, rate.steps_per_s, rate.error, rate.window_s, rate.at,
                    RateSource.FAMILY, rate.thread_percentage,
                )  # fmt: skip
        planned = member.spec.plan.solo_steps_per_s
        if planned is None:
            return None
        return RateAlone(member.number, planned, source=RateSource.PROFILE)

    def find_family_of(self, number: int) -> str:
        """What a member is like that was here, though another pack may have it by now."""
        member = self._members.by_number.get(number)
        return (
            self._families.get(number, ("", ""))[0] if member is None else self.find_family(member)
        )

    def find_family(self, member: Member) -> str:
        """What it is like; empty where that cannot be read."""
        return self._sign(member)[0]

    def find_script(self, member: Member) -> str:
        """The family of its script, whatever its arguments; empty where it cannot be read."""
        return self._sign(member)[1]

    def _sign(self, member: Member) -> tuple[str, str]:
        """Both of a member.

        One that may come from another pack cannot be read here yet: that is not kept.
        """
        known = self._families.get(member.number)
        if known is not None:
            return known
        # Loaded only by packs that are measured.
        from slurm_colloc.store.learned.profiles import compute_family, compute_kind

        path = f"{self._pack}/members/{format_number(member.number)}/script"
        try:
            script = read_bytes(path)
        except OSError:
            return "", ""
        job = member.spec.job
        found = compute_kind(script, job), compute_family(script, job)
        self._families[member.number] = found
        return found
