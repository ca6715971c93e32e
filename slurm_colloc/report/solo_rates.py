"""A member alone: its solo rate, and what its usage profile learns from this run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from slurm_colloc.metrics.energy import find_idle_power_w
from slurm_colloc.metrics.presence import find_alone, find_shared
from slurm_colloc.metrics.rates import Interval, Settled, compute_rate, select_within
from slurm_colloc.metrics.series import Window, measure_windows
from slurm_colloc.metrics.stalls import compute_data_share, find_covered
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.profile import (
    PCIE_MIB_S,
    Completion,
    Observation,
    ProfileRecord,
    rates_agree,
)
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.pack_samples import StartSamples

ALONE_LEAST_S = 20.0
"""A shorter time alone gives no solo rate."""
_WARM_UP_S = 10.0

PROFILE = "profile"
THIS_RUN = "this run"
ALONE = "alone"
FAMILY = "family"
MEASURED = "measured"


@dataclass(frozen=True)
class SoloRate:
    """A member's rate alone.

    Attributes:
        steps_per_s: The rate.
        source: `profile`, `this run` for a part of this run, `alone` where it never shared,
            `family` for jobs that differ from it in numbers among their arguments alone.
        n: How many runs it is the mean of.
        sm_active: The GPU's SM activity then, 0 to 1; None where unknown.
        power_w: The GPU's power then, in watts; None where unknown.
    """

    steps_per_s: float
    source: str
    n: int
    sm_active: float | None
    power_w: float | None


def find_solo_rate(
    run: PackRun, member: MemberRun, intervals: Sequence[Interval], relatives: Relatives
) -> SoloRate | None:
    """A member's solo rate; None where it is unknown.

    From its usage profile; else from at least 20 s of this run in which it was alone, with all of
    the GPU; else from its family. A member that never shared was as fast as it is alone, whatever
    its profile says.

    Args:
        run: The pack.
        member: The member.
        intervals: Its settled intervals.
        relatives: What is known of its family.
    """
    shared = find_shared(run.phases, member.number)
    profile = member.profile
    rate = profile.steps_per_s if profile is not None else None
    if shared and profile is not None and rate is not None:
        return SoloRate(rate.mean, PROFILE, rate.n, profile.sm_active, profile.energy_w)
    windows = find_alone(run.phases, member.number)
    intervals = select_within(intervals, windows)
    # Who never shared needs no more than what a rate needs.
    found = compute_rate(intervals, ALONE_LEAST_S) if shared else compute_rate(intervals)
    if was_limited(member) or (shared and found.steps_per_s is None):
        return relatives.find(member)
    if found.steps_per_s is None:
        return None
    used = _hull(intervals, windows)
    return SoloRate(
        found.steps_per_s,
        THIS_RUN if shared else ALONE,
        1,
        # The rate has no pauses, so what it is modelled with has none.
        _mean(run, "sm_active", find_covered(intervals)),
        _mean(run, "power_w", used),
    )


def was_limited(member: MemberRun) -> bool:
    """Whether a start of it had a part of the GPU's threads only, even while it was alone.

    Only of the last start it is written down; so one that was started again may have been.
    """
    record = member.view.record
    if record is None or record.gpu is None:
        return False
    if len(member.starts) > 1 and record.gpu.mode != SharingMode.EXCLUSIVE.value:
        return True
    percentage = record.gpu.thread_percentage
    return percentage is not None and percentage < 100


class Relatives:
    """What the members of a pack can learn from their families.

    Args:
        run: The pack.
    """

    def __init__(self, run: PackRun) -> None:
        self._run = run
        self._found: dict[str, SoloRate | None] = {}

    def find(self, member: MemberRun) -> SoloRate | None:
        """The rate alone of a member's family; None where it is not known, or not one."""
        family = member.family
        if family is None:
            return None
        if family not in self._found:
            self._found[family] = self._compute(family, member.relatives)
        return self._found[family]

    def _compute(self, family: str, profiles: Sequence[ProfileRecord]) -> SoloRate | None:
        known = [
            (record.steps_per_s.mean, record.sm_active, record.energy_w)
            for record in profiles
            if record.steps_per_s is not None
        ]
        counted = {source for record in profiles for source in record.seen}
        for member in self._run.members:
            if member.family == family:
                known += [
                    (seen.steps_per_s, seen.sm_active, seen.energy_w)
                    for seen in build_observations(self._run, member, member.settle())
                    if seen.steps_per_s is not None and seen.source not in counted
                ]
        if not known:
            return None
        rates = [rate for rate, _, _ in known]
        mean = fmean(rates)
        if not rates_agree(rates):
            return None
        activities = [value for _, value, _ in known if value is not None]
        powers = [value for _, _, value in known if value is not None]
        return SoloRate(
            mean,
            FAMILY,
            len(known),
            fmean(activities) if activities else None,
            fmean(powers) if powers else None,
        )


def find_idle_power(run: PackRun) -> tuple[float | None, str]:
    """The GPU's idle power in watts, and in words where it is from.

    From samples before the first member started, else before the first step; else from a usage
    profile.
    """
    power = run.gpu.get("power_w")
    firsts = [s.first_step_at for m in run.members for s in m.starts if s.first_step_at is not None]
    begins = [stay.begin for member in run.members for stay in member.stays]
    moments = [(begins, "before the first member started"), (firsts, "before the first step")]
    for times, words in moments:
        value = find_idle_power_w(power, min(times)) if power is not None and times else None
        if value is not None:
            return value, f"{MEASURED} {words}"
    for member in run.members:
        if member.profile is not None and member.profile.idle_power_w is not None:
            return member.profile.idle_power_w, f"from the usage profile of {member.view.member}"
    return None, ""


def build_observations(
    run: PackRun, member: MemberRun, settled: Sequence[Settled]
) -> list[Observation]:
    """What a run teaches of a member: each start that was alone for 20 s after its warm-up.

    With a thread limit it was alone without all of the GPU, which is no use alone.

    Args:
        run: The pack.
        member: The member.
        settled: Its progress, a start each.
    """
    windows = find_alone(run.phases, member.number)
    if run.gpu_model is None or member.signature is None or not windows or was_limited(member):
        return []
    found = (
        _observe(run, member, *pair, windows) for pair in zip(member.starts, settled, strict=True)
    )
    return [observation for observation in found if observation is not None]


def _observe(
    run: PackRun,
    member: MemberRun,
    start: StartSamples,
    settled: Settled,
    windows: list[Window],
) -> Observation | None:
    own = _clip(windows, (start.begin, start.end))
    intervals = select_within(settled.intervals, own)
    if settled.steps > 0:
        used = _hull(intervals, own)
    else:
        # Nothing tells when it had settled; a GPU job without progress still has a peak.
        used = _clip(own, (start.begin + _WARM_UP_S, start.end))
    used_s = measure_windows(used)
    if used_s < ALONE_LEAST_S:
        return None
    stepping = find_covered(intervals) if settled.steps > 0 else used
    rate = compute_rate(intervals, ALONE_LEAST_S)
    idle_power_w, origin = find_idle_power(run)
    at = start.read("at")
    memory = _select_rows(at, own)
    return Observation(
        signature=member.signature or "",
        family=member.family or "",
        name=member.view.name,
        gpu_model=run.gpu_model or "",
        gpu_uuid=run.gpu_uuid or "",
        source=f"{run.view.record.pack_id}/{member.number}.{start.attempt}.{start.start}",
        at=used[-1][1],
        window_s=used_s,
        gpu_memory_peak_mb=_peak(start.read("gpu_memory_mb"), memory),
        sm_active=_mean(run, "sm_active", stepping),
        dram_active=_mean(run, "dram_active", used),
        tensor_active=_mean(run, "tensor_active", used),
        cpu_cores=_compute_cores(at, start.read("cpu_s"), _select_rows(at, used)),
        host_memory_peak_mb=_peak(start.read("host_memory_mb"), memory),
        steps_per_s=rate.steps_per_s,
        samples_per_s=rate.samples_per_s,
        wait_share=compute_data_share(intervals),
        energy_w=_mean(run, "power_w", used),
        # What a profile said is not measured again.
        idle_power_w=idle_power_w if origin.startswith(MEASURED) else None,
        engine_active=_mean(run, "engine_active", stepping),
        pcie_share=_compute_pcie_share(run, used),
        gpu_memory_total_mb=run.gpu_details[1],
    )


def _compute_pcie_share(run: PackRun, windows: list[Window]) -> float | None:
    rates = [_mean(run, metric, windows) for metric in ("pcie_rx_mib_s", "pcie_tx_mib_s")]
    busier = max((rate for rate in rates if rate is not None), default=None)
    return None if busier is None else min(1.0, busier / PCIE_MIB_S)


def build_completion(run: PackRun, member: MemberRun, steps: float | None) -> Completion | None:
    """The steps of a member that came to its own end; None where it did not, or none are known.

    Of one that was started again it is not known whether it began anew.

    Args:
        run: The pack.
        member: The member.
        steps: All its steps.
    """
    view = member.view
    if view.state is not MemberState.COMPLETED or len(member.starts) != 1 or not steps:
        return None
    if view.spec.job.only_probe or run.gpu_model is None or member.signature is None:
        return None
    return Completion(
        member.signature, run.gpu_model, f"{run.view.record.pack_id}/{member.number}", steps
    )


def _select_rows(at: Sequence[float], windows: Sequence[Window]) -> list[range]:
    """The rows of each window."""
    return [range(bisect_left(at, begin), bisect_right(at, end)) for begin, end in windows]


def _peak(values: Sequence[float | None], rows: Sequence[range]) -> float | None:
    known = (values[row] for part in rows for row in part)
    return max((value for value in known if value is not None), default=None)


def _compute_cores(
    at: Sequence[float], cpu: Sequence[float | None], rows: Sequence[range]
) -> float | None:
    """CPU seconds per second over windows; None where the counter was not read."""
    cpu_s = length_s = 0.0
    for part in rows:
        known = [(at[row], value) for row in part if (value := cpu[row]) is not None]
        if len(known) > 1:
            cpu_s += known[-1][1] - known[0][1]
            length_s += known[-1][0] - known[0][0]
    return cpu_s / length_s if length_s > 0 else None


def _mean(run: PackRun, metric: str, windows: list[Window]) -> float | None:
    track = run.gpu.get(metric)
    return track.compute_mean(windows) if track is not None else None


def _clip(windows: list[Window], to: Window) -> list[Window]:
    clipped = [(max(begin, to[0]), min(end, to[1])) for begin, end in windows]
    return [(begin, end) for begin, end in clipped if end > begin]


def _hull(intervals: Sequence[Interval], windows: list[Window]) -> list[Window]:
    """The parts of windows from their first settled interval to their last."""
    found = []
    for window in windows:
        inside = select_within(intervals, [window])
        if inside:
            found.append((inside[0].begin, inside[-1].end))
    return found
