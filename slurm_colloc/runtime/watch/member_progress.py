"""What a runner sees of its members' progress: the monitor's figures, and their rates alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.model.degree.ramp_look import Sight
from slurm_colloc.model.degree.ramp_steps import compute_room
from slurm_colloc.model.plan import Policy, Rule
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.runtime.watch.latest_json import read_latest
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.sample_files import latest_path

_ACTIVITIES = ("sm_active", "dram_active")

_GPU_MEMORY_ROOM = 1.2
_GPU_MEMORY_MARGIN_MB = 1024
"""What one like another may need over what that takes now."""


def choose_common_bound(policy: Policy | None) -> float | None:
    """The slowdown that is accepted for who says nothing of it; None for any.

    Args:
        policy: Of the pack; the rules of others know no bound.
    """
    return policy.slowdown_bound if policy is not None and policy.rule is Rule.CSUB else None


class ProgressReader:
    """Looks at the members of a pack.

    Args:
        pack: The pack's directory.
        roster: Its members.
        probing: Knows the rates alone that probe windows have shown.
        instruments: The settings let steps be counted.
        has_mps: Members share the GPU through MPS; its activity tells what is left of it.
        find_gpu_memory_mb: The GPU's memory; None where it is unknown.
        bound: The slowdown that is accepted for who has none of its own; None for any.
    """

    def __init__(
        self,
        pack: Path,
        roster: PackMembers,
        probing: ProbeWindow,
        *,
        instruments: bool,
        has_mps: Callable[[], bool],
        find_gpu_memory_mb: Callable[[], int | None] = lambda: None,
        bound: float | None = None,
    ) -> None:
        self._pack = pack
        self._roster = roster
        self._probing = probing
        self._instruments = instruments
        self._has_mps = has_mps
        self._find_gpu_memory_mb = find_gpu_memory_mb
        self._bound = bound
        self._begun_at = time.time()
        self._stamp: tuple[int, int] | None = None
        self._families: dict[int, str] = {}
        self.looked_at = 0.0
        """Of when the newest figures are, in seconds since the epoch; 0 for none."""

    def read(self) -> Mapping[str, Any] | None:
        """The monitor's newest figures; None where they are those of before."""
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

    def see(self, member: Member, latest: Mapping[str, Any]) -> Sight:
        """A member that runs, by the monitor's figures."""
        start = member.record.starts + (1 if member.is_starting else 0)
        plan = member.spec.plan
        found = latest["members"].get(str(member.number)) or {}
        if found.get("start") != start:
            found = {}
        age_s = found.get("last_step_age_s")
        return Sight(
            member.number,
            start,
            steps=found.get("steps"),
            last_step_at=None if age_s is None else latest["at"] - age_s,
            solo_steps_per_s=self.find_solo_rate(member),
            bound=plan.max_slowdown or self._bound,
            predicted=plan.predicted_slowdown,
            kind=self.find_family(member),
            steady=bool(found.get("steady")),
            is_wide=member.is_probed and self._is_limited(),
        )

    def _is_limited(self) -> bool:
        """Whether somebody who runs has a part of the GPU's threads only."""
        uses = [member.gpu for member in self._roster.running() if member.gpu is not None]
        return any((use.thread_percentage or 100) < 100 for use in uses)

    def find_activity(self, latest: Mapping[str, Any]) -> float | None:
        """The GPU's activity, that of its busiest part, 0 to 1; None where it says nothing."""
        # By time slices the GPU is taken up long before its SMs are.
        if not self._has_mps():
            return None
        values = [
            gpu[name]
            for gpu in latest["gpus"].values()
            for name in _ACTIVITIES
            if gpu.get("sm_active") is not None and gpu.get(name) is not None
        ]
        return max(values, default=None)

    def find_room(
        self, latest: Mapping[str, Any], member: Member, others: Sequence[Member]
    ) -> int | None:
        """How many like a member that runs alone fit, by what it takes; None where unknown.

        Args:
            latest: The monitor's figures.
            member: The only one that runs.
            others: Those that would come on top.
        """
        family = self.find_family(member)
        gpus = list(latest["gpus"].values())
        if len(gpus) != 1 or not family or {self.find_family(o) for o in others} != {family}:
            return None
        # Who takes turns gets the GPU for itself, however many of its SMs that leaves idle.
        shared = "sm_active" if self._has_mps() else "engine_active"
        # Loaded only by packs that are measured.
        from slurm_colloc.model.profile import PCIE_MIB_S
        from slurm_colloc.planning.limits.hard_limits import GPU_MEMORY_SHARE

        copied = [gpus[0].get(name) for name in ("pcie_rx_mib_s", "pcie_tx_mib_s")]
        busier = max((rate for rate in copied if rate is not None), default=None)
        room = compute_room(
            gpus[0].get(shared),
            gpus[0].get("dram_active"),
            None if busier is None else busier / PCIE_MIB_S,
        )
        found = latest["members"].get(str(member.number)) or {}
        needed_mb, total_mb = found.get("gpu_memory_mb"), self._find_gpu_memory_mb()
        if room is None or not needed_mb or not total_mb:
            return None
        each_mb = _GPU_MEMORY_ROOM * needed_mb + _GPU_MEMORY_MARGIN_MB
        return max(1, min(room, int(GPU_MEMORY_SHARE * total_mb / each_mb)))

    def counts_steps(self, member: Member) -> bool:
        """Whether something counts its steps."""
        job = member.spec.job
        return (self._instruments and job.instrument) or job.progress_regex is not None

    def knows_rates(self) -> bool:
        """Whether somebody's rate alone is known; without, nothing can be judged."""
        members = self._roster.members.values()
        return bool(self._probing.rates) or any(m.spec.plan.solo_steps_per_s for m in members)

    def find_solo_rate(self, member: Member) -> float | None:
        """Its rate alone: by the plan, by its probe window, or by those of its family."""
        if not self.counts_steps(member) or not self.knows_rates():
            return None
        own = member.spec.plan.solo_steps_per_s or self._probing.rates.get(member.number)
        if own:
            return own
        family = self.find_family(member)
        for number, other in self._roster.members.items() if family else ():
            rate = self._probing.rates.get(number) or other.spec.plan.solo_steps_per_s
            if rate and self.find_family(other) == family:
                return rate
        return None

    def find_family(self, member: Member) -> str:
        """What it is like; empty where that cannot be read."""
        if member.number not in self._families:
            # Loaded only by packs that are measured.
            from slurm_colloc.store.learned.profiles import compute_family

            family = ""
            with contextlib.suppress(OSError):
                path = f"{self._pack}/members/{format_number(member.number)}/script"
                family = compute_family(read_bytes(path), member.spec.job)
            self._families[member.number] = family
        return self._families[member.number]
