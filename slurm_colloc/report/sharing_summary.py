"""What sharing gained or cost: the pack's part of summary.json; docs/json.md has the fields."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from slurm_colloc.metrics.presence import compute_rest, find_crowded
from slurm_colloc.metrics.rates import Window, measure_windows, sum_known
from slurm_colloc.metrics.sharing_cost import (
    SHORT_S,
    EnergyPhase,
    EnergySplit,
    compare_with_serial,
    complete_solo_times,
    compute_antt,
    compute_fairness,
    compute_mean_stp,
    compute_saving,
    measure_energy,
    split_energy,
)
from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.report.member_figures import Figures, compute_instance_sm, find_instance
from slurm_colloc.report.pack_run import PackRun
from slurm_colloc.report.solo_rates import FAMILY, find_idle_power
from slurm_colloc.report.summary_file import (
    SummaryAllUnexplained,
    SummaryPack,
    SummaryPrediction,
    SummaryUnexplained,
)

_EDGE_S = 5.0


@dataclass(frozen=True)
class EnergyFigures:
    """Energy of a pack.

    Attributes:
        split: What each member used.
        idle_power_w: Power of an idle GPU of the pack; None where unknown.
        idle_from: Where that is from, in words.
        window_j: From the first start to the last end; None where unknown.
    """

    split: EnergySplit
    idle_power_w: float | None
    idle_from: str
    window_j: float | None

    def explain(self, member: int) -> str:
        """Why a member's energy is unknown; empty where it is known."""
        if self.split.parts.get(member) is not None or member not in self.split.parts:
            return ""
        if self.window_j is None:
            return "energy unknown: the GPU's could not be read"
        if self.idle_power_w is None:
            return "energy unknown: so is the GPU's idle power"
        return "energy unknown: so is its SM activity alone, or the GPU's was not read for a while"


def compute_energy(run: PackRun, figures: Sequence[Figures]) -> EnergyFigures:
    """Split the energy of a pack among its members."""
    idle_power_w, idle_from = find_idle_power(run)
    all_idle_w = None if idle_power_w is None else idle_power_w * max(1, len(run.gpu_uuids))
    by_number = {entry.member.number: entry for entry in figures}
    phases = []
    for phase in run.phases:
        window = phase.begin, phase.end
        parts = {n: _find_part(run, by_number[n], [window]) for n in phase.members}
        phases.append(
            EnergyPhase(
                phase.length_s, _measure(run, window), _find_activity(run, window, parts), parts
            )
        )
    window_j = _measure(run, run.window) if run.window is not None else None
    return EnergyFigures(split_energy(phases, all_idle_w), idle_power_w, idle_from, window_j)


def _find_part(run: PackRun, entry: Figures, windows: Sequence[Window]) -> float | None:
    """A member's SM activity as a part of all of the pack's GPUs; None where unknown.

    Measured on its own MIG instance, else by its model.
    """
    member = entry.member
    part = compute_instance_sm(run, member, windows)
    part = entry.model_sm(windows) if part is None else part
    return None if part is None else part * run.count_share_of(member)


def _find_activity(run: PackRun, window: Window, parts: Mapping[int, float | None]) -> float | None:
    """The SM activity of the pack's GPUs; where only instances tell it, their sum."""
    mean = run.gpu.get("sm_active").compute_mean([window])
    on_instances = all(
        find_instance(member) is not None for member in run.members if member.number in parts
    )
    return sum_known(parts.values()) if mean is None and on_instances else mean


def _measure(run: PackRun, window: Window) -> float | None:
    """Energy over a window that may begin and end a moment outside the samples."""
    counter, power = run.gpu.get("energy_j"), run.gpu.get("power_w")
    at = counter.at
    if not at:
        return None
    begin, end = max(window[0], at[0]), min(window[1], at[-1])
    if begin - window[0] > _EDGE_S or window[1] - end > _EDGE_S:
        return None
    if end <= begin:
        return 0.0
    return measure_energy(counter, power, (begin, end))


def build_pack(
    run: PackRun,
    figures: Sequence[Figures],
    energy: EnergyFigures,
    together: Mapping[int, float],
) -> SummaryPack:
    """What sharing gained or cost."""
    there = [entry for entry in figures if entry.member.stays]
    long = [entry for entry in there if entry.member.present_s >= SHORT_S]
    windows = find_crowded(run.phases, 2) or find_crowded(run.phases, 1)
    shared_s = measure_windows(windows)
    stays = [(_overlap(run, entry, windows), entry.slowdown) for entry in long]
    stays = [stay for stay in stays if stay[0] > 0]
    known = [stay for stay in stays if stay[1] is not None]
    slowdowns = [entry.slowdown for entry in long]
    fairness = compute_fairness(slowdowns)
    length_s = run.window[1] - run.window[0] if run.window is not None else 0.0
    solo_times = complete_solo_times(
        [(entry.member.present_s, entry.solo_time_s) for entry in there]
    )
    gpus = max(1, len(run.gpu_uuids))
    # One after the other on each GPU: one that needs one GPU of two leaves the other to the next.
    serial_times = [
        None if time_s is None else time_s * run.count_share_of(entry.member)
        for entry, time_s in zip(there, solo_times, strict=True)
    ]
    serial_s, hours_saved = compare_with_serial(serial_times, length_s, gpus)
    energies = [
        _estimate_solo_energy(run, entry, time_s, energy.idle_power_w)
        for entry, time_s in zip(there, solo_times, strict=True)
    ]
    kwh_saved, kwh_how = compute_saving(
        energy.window_j,
        energies,
        serial_s,
        length_s,
        None if energy.idle_power_w is None else energy.idle_power_w * gpus,
    )
    return {
        "stp": compute_mean_stp(stays, shared_s),
        "stp_at_least": compute_mean_stp(known, shared_s),
        "antt": compute_antt(slowdowns),
        "prediction": _compare_prediction(figures, together),
        "fairness": fairness and {"jain": fairness[0], "min_over_max": fairness[1]},
        "members": len(there),
        "members_most": max((len(phase.members) for phase in run.phases), default=0),
        "overlap_s": measure_windows(find_crowded(run.phases, 2)),
        "serial_s": serial_s,
        "shared_s": length_s if there else None,
        "gpu_hours_saved": hours_saved,
        "kwh_saved": kwh_saved,
        "kwh_how": kwh_how or None,
        "idle_power_w": energy.idle_power_w,
        "idle_power_from": energy.idle_from or None,
        "unknown": _list_unknown(there, energy, kwh_saved),
        "slowdown_unknown": list(
            dict.fromkeys(entry.unknown for entry in there if _has_no_slowdown(entry))
        ),
    }


def _compare_prediction(
    figures: Sequence[Figures], together: Mapping[int, float]
) -> SummaryPrediction | None:
    """Predicted slowdowns and measured ones; None for one alone, and where none is known.

    Measured while all ran that were planned together, or, where they never did, over all the time
    that each shared.
    """
    over = "together" if together else "shared"
    known = []
    for entry in figures:
        measured = together.get(entry.member.number)
        if not together and entry.shared_rate is not None and entry.member.present_s >= SHORT_S:
            measured = entry.slowdown
        if entry.predicted_slowdown and measured:
            known.append((entry.predicted_slowdown, measured))
    if not known:
        return None
    count = len(known)
    return {
        "members": count,
        "over": over,
        "predicted": sum(predicted for predicted, _ in known) / count,
        "measured": sum(measured for _, measured in known) / count,
        # Of the normalised progress, as the model's own errors are told.
        "error": sum(abs(measured / predicted - 1.0) for predicted, measured in known) / count,
    }


def _estimate_solo_energy(
    run: PackRun, entry: Figures, time_s: float | None, idle_power_w: float | None
) -> float | None:
    """What a member's work takes alone, in joules: its GPUs' idle power while it makes no steps."""
    if time_s is None or entry.solo is None or entry.solo.power_w is None:
        return None
    power_w = entry.solo.power_w
    other_s = min(time_s, max(0.0, entry.member.present_s - entry.stepping_s - entry.paused_s))
    other_w = power_w if idle_power_w is None else min(power_w, idle_power_w)
    gpus = run.count_gpus_of(entry.member)
    return gpus * (power_w * (time_s - other_s) + other_w * other_s)


def _overlap(run: PackRun, entry: Figures, windows: Sequence[Window]) -> float:
    """How long a member was there within windows that begin and end with phases, in order."""
    number, begins = entry.member.number, [begin for begin, _ in windows]
    total_s = 0.0
    for phase in run.phases:
        place = bisect_right(begins, phase.begin) - 1
        if number in phase.members and place >= 0 and phase.end <= windows[place][1]:
            total_s += phase.length_s
    return total_s


def _has_no_slowdown(entry: Figures) -> bool:
    """It was there for long enough."""
    return entry.member.present_s >= SHORT_S and entry.slowdown is None


def _list_unknown(
    there: Sequence[Figures], energy: EnergyFigures, kwh_saved: float | None
) -> list[str]:
    unknown = []
    by_reason: dict[str, list[str]] = {}
    for entry in there:
        name = str(entry.member.view.member)
        if entry.member.present_s < SHORT_S:
            text = f"there for less than {SHORT_S:.0f} s, left out of STP and ANTT"
            by_reason.setdefault(text, []).append(name)
        elif _has_no_slowdown(entry):
            by_reason.setdefault(f"slowdown: {entry.unknown}", []).append(name)
        if entry.solo is not None and entry.solo.source == FAMILY:
            text = "time and power alone are those of the family, and so are all figures with them"
            by_reason.setdefault(text, []).append(name)
    unknown += [f"{name_members(ids)}: {reason}" for reason, ids in by_reason.items()]
    if energy.window_j is None and there:
        unknown.append("energy: the GPU's could not be read over the whole time")
    if kwh_saved is None and energy.idle_power_w is None and there:
        unknown.append("energy saved: the power of the idle GPU and of members alone is not known")
    return unknown


def build_unexplained(
    run: PackRun, figures: Sequence[Figures], energy: EnergyFigures
) -> SummaryAllUnexplained:
    """What was measured of the GPU and belongs to no member."""
    windows = find_crowded(run.phases, 2)
    shared_s = measure_windows(windows)
    sm: SummaryUnexplained | None = None
    if shared_s > 0 and run.gpu:
        there = [entry for entry in figures if _overlap(run, entry, windows) > 0]
        parts = {entry.member.number: _find_part(run, entry, windows) for entry in there}
        measured = run.gpu.get("sm_active").compute_mean(windows)
        explained, rest = compute_rest(measured, parts.values())
        sm = {
            "measured": measured,
            "explained": explained,
            "rest": rest,
            "members_unknown": [number for number, part in parts.items() if part is None],
        }
    explained_j = sum(part.value for part in energy.split.parts.values() if part is not None)
    return {
        "sm_active": sm,
        "energy_j": {
            "measured": energy.split.whole_j,
            "explained": explained_j,
            "rest": energy.split.rest_j,
            "members_unknown": [n for n, part in sorted(energy.split.parts.items()) if not part],
        },
    }
