"""What a summary says of a whole pack, in sentences.

Also: every word of the tables and of `--detail`, explained: for `csub explain` and as hints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.metrics.presence import Attribution
from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.plan import PeakSource
from slurm_colloc.model.quantities import format_count
from slurm_colloc.model.records import is_number
from slurm_colloc.report.summary_file import (
    Summary,
    SummaryChange,
    SummaryCores,
    SummaryCoverage,
    SummaryMember,
    SummaryPack,
    SummaryPrediction,
    SummaryStall,
    SummaryUnexplained,
)
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    format_figure,
    format_mb_figure,
    format_share,
    format_span,
)

# ----
# Every word of the tables and of `--detail`, explained: for `csub explain` and as hints; pure.
#
# docs/report.md has the formulas.

PEAK_SOURCE_WORDS = {
    PeakSource.ALLOCATOR: "PyTorch's allocator",
    PeakSource.NVML: "NVML's readings",
}
"""Who says what a peak of GPU memory is, after `by`."""

_ATTRIBUTIONS = {
    Attribution.EXACT.value: "measured",
    Attribution.PER_PROCESS.value: "own",
    Attribution.MODELLED.value: "estimated",
    Attribution.WHOLE_GPU.value: "whole GPU",
}

WORDS: dict[str, str] = {
    # The columns.
    "MEMBER": "A job as part of a pack: 4711/3 is member 3 of submission 4711.",
    "NAME": "The job name, as --job-name or the script's name gives it.",
    "ARGUMENTS": "The arguments of its script; ... stands for those that all begin with.",
    "STATE": "Where it is, or how it ended. csub explain FAILED tells more of one state.",
    "STEPS": "Training steps that were counted, over all its starts.",
    "STEPS/S": "Training steps per second, after its warm-up and without checkpoints and other "
    "pauses.",
    "SAMPLES/S": "Samples that it took from its DataLoader per second.",
    "ALONE": "Its steps per second alone on the GPU: from its usage profile, from this run while "
    "it was alone, or measured while the others were paused.",
    "SLOWDOWN": "How many times slower than alone it ran while others were there: rate alone / "
    "rate in company. 1 is as fast as alone; up to the accepted slowdown it was asked for.",
    "PREDICTED": "The slowdown that the plan expected.",
    "GPU_MEM": "The most GPU memory that it used.",
    "GPU SM": "How much of the GPU's processors (streaming multiprocessors) its kernels kept busy, "
    "on average. A GPU can be 97 % utilized while 12 % of them are busy.",
    "ENERGY": "Its part of the energy that the GPU used.",
    "CPUS": "CPUs that it kept busy, on average.",
    "DATA WAIT": "The part of its time in which training waited for its DataLoader.",
    # How a number was obtained.
    "MEASURED": "It was measured while no other process used what was measured.",
    "OWN": "It is the member's own: the driver reports it for each process.",
    "ESTIMATED": "It was not measured but computed, from what the member uses alone and its rate: "
    "a GPU that is shared tells its activity only as a whole.",
    "WHOLE GPU": "It is for the whole GPU and cannot be split among the members on it.",
    "UNKNOWN": "It could not be read, or needs something that could not. It is never 0.",
    # Of the whole pack.
    "GAIN": "The time that the jobs would have taken one after the other, each alone on the GPU, "
    "over the time that they took together. Of one pack that is wall time: 2 times faster is half "
    "of it. Of several packs, or of some members, it is GPU time: 2 times the work per GPU hour, "
    "whenever the last job ended.",
    "ACCEPTED": "How much slower than alone a job may get by sharing: --max-slowdown, else the "
    "setting slowdown_bound.",
    "STP": "System throughput: the sum of the members' progress, each as a part of its progress "
    "alone, while two or more ran (Eyerman and Eeckhout, 2008). 2.5 is the work of two and a half "
    "GPUs with one job each.",
    "ANTT": "Average normalised turnaround time: the mean of the slowdowns (Eyerman and Eeckhout, "
    "2008). 1 is as fast as alone.",
    "FAIRNESS": "How evenly sharing slowed the members down: Jain's index of their progress, 1 "
    "where all were slowed down alike.",
    "JAIN": "Jain's index of fairness: 1 where all members made the same part of their progress "
    "alone, 1/n where one of n made all.",
    "DEGREE": "How many members run on the GPU at the same time.",
    "ROOM": "How many more members like those that ran would have fitted on the GPU, by what its "
    "runner measured.",
    "PARKED": "Paused until a place on the GPU is free for it; this time does not count.",
    "PAUSED": "Stopped for a moment, so that the others could be measured without it. Paused time "
    "counts for no member.",
    "JOINED": "It joined a pack that was already running.",
    "NOT SPLIT": "What was measured of the whole GPU, less what the members' models explain.",
    "COVERAGE": "The part of the monitor's scheduled readings that were taken.",
    "UTILIZATION": "The part of the time in which any kernel ran on the GPU, however small. It "
    "says little about room for others: GPU SM does.",
    "TENSOR": "The part of the time in which the GPU's tensor cores worked.",
    "DRAM": "The part of the time in which the GPU's memory was read or written.",
    "STALL": "Time in which a training could not go on: it waited for data, for the host, or for "
    "others on the GPU.",
    "HOST": "The part of its time alone in which it neither waited for data nor had a kernel "
    "running: Python, and launching kernels.",
    "DEVICE": "The part of its time alone in which it had a kernel running on the GPU.",
    "INTERFERENCE": "How its rate changed as other members came or went.",
    # How a GPU is shared.
    "SWEEP": "One submission of a script with many values: csub sweep train.sh --lr 0.1,0.2.",
    "PARAMETERS": "What tells a job from the others of its sweep or table, such as lr=0.1; "
    "--where lr=0.1 chooses members by them.",
    "RETRY": "Members that failed run again as new members of their submission: csub retry ID. Of "
    "each the last try counts.",
    "SNAPSHOT": "A copy of the project as it was at submission; the job runs in it (--snapshot).",
    "PACK": "The jobs that share one GPU inside one Slurm job.",
    "SUBMISSION": "What one call of csub submitted: one id, though it may be several packs.",
    "MPS": "NVIDIA's Multi-Process Service: kernels of several processes run on the GPU at the "
    "same time.",
    "TIMESLICE": "Plain processes: the GPU runs the kernels of one, then of the next, in turns of "
    "about a millisecond.",
    "EXCLUSIVE": "One job has the GPU for itself.",
    "MIG": "A GPU that is cut into parts, each with processors and memory of its own.",
    "INSTANCE": "The part of a GPU cut by MIG on which a member ran, by NVIDIA's name: 3g.40gb has "
    "3 of 7 slices of the GPU's processors and 40 GB of its memory.",
    "FALLBACK": "The GPU could not be shared in the way that was planned, so it was shared in "
    "another way.",
    "USAGE PROFILE": "What a job used and how fast it was while alone, kept for the next plan: "
    "csub profile list.",
    "TAKING OVER": "A member that waits in one pack moves to another, where there is measured "
    "room for it: one of its submission, or with --join on both of another that runs the same "
    "script.",
}  # fmt: skip

_ALIASES = {
    "SM": "GPU SM", "GPU MEM": "GPU_MEM", "GPU MEMORY": "GPU_MEM", "CPU": "CPUS",
    "DATA": "DATA WAIT", "WAIT": "DATA WAIT", "DATA_WAIT": "DATA WAIT", "TIME SLICES": "TIMESLICE",
    "PROFILE": "USAGE PROFILE", "TAKEN OVER": "TAKING OVER", "SAVED": "GAIN", "GPU-SM": "GPU SM",
    "GPU_SM": "GPU SM", "SLOW-DOWN": "SLOWDOWN", "PRE-DICTED": "PREDICTED", "STEP/S": "STEPS/S",
    "ACCEPTED SLOWDOWN": "ACCEPTED", "ARGS": "ARGUMENTS", "NOT_SPLIT": "NOT SPLIT",
    "MIG INSTANCE": "INSTANCE", "EXACT": "MEASURED", "PER_PROCESS": "OWN",
    "MODELLED": "ESTIMATED", "WHOLE_GPU": "WHOLE GPU",
}  # fmt: skip


def say_attribution(word: str) -> str:
    """How a number was obtained, for people; JSON and tables of data have metrics.Attribution."""
    return _ATTRIBUTIONS.get(word, word)


def find_word(text: str) -> tuple[str, str] | None:
    """A word of a report and what it means; None where it is none."""
    name = " ".join(text.upper().split())
    name = _ALIASES.get(name, name)
    meaning = WORDS.get(name)
    return None if meaning is None else (name, meaning)


# ---- What a summary says of a whole pack, in sentences -------------------------------------------

_INTERFERENCE_MOST = 5
_STALLS_MOST = 5
_SHARE_LEAST = 0.005
"""Less is 0 % when it is written down."""


def build_sentences(
    summary: Summary, chosen: Sequence[SummaryMember] | None = None
) -> list[tuple[str, str]]:
    """Labelled sentences on speed, time, energy, the GPU and the monitor.

    Args:
        summary: The pack's summary.
        chosen: The members that are shown, of which alone it is to tell; None for the whole pack.
    """
    pack, window = summary["pack"], summary["window"]
    if window is None:
        return [("Figures", _tell_nothing(summary, chosen or summary["members"]))]
    lines = []
    if chosen is not None:
        lines += _tell_energy(chosen)
        lines += _tell_gpu_memory(chosen)
        lines += _tell_stalls(chosen)
        lines += _tell_interference(window["from"], chosen)
        return [*lines, ("Pack", _tell_whole(summary))]
    if pack["members"] > 1:
        lines.append(("Together", _tell_speed(pack)))
        if pack["prediction"] is not None:
            lines.append(("Predicted", _tell_prediction(pack["prediction"])))
        lines.append(("In a row", _tell_serial(pack)))
        lines.append(("Saved", _tell_saving(pack)))
    lines += [("Degree", text) for text in _tell_degree(summary)]
    lines.append(("GPU", _tell_gpu(summary)))
    lines += _tell_energy(summary["members"])
    lines += _tell_gpu_memory(summary["members"])
    lines += [("Not split", text) for text in _tell_unexplained(summary)]
    lines += _tell_stalls(summary["members"])
    lines += _tell_interference(window["from"], summary["members"])
    lines.append(("Monitor", _tell_coverage(summary["coverage"])))
    return lines


_SUBMISSIONS_NAMED = 4


def _tell_whole(summary: Summary) -> str:
    """Where the rest of a pack is shown: by the ids of all that are in it."""
    jobs = dict.fromkeys(member["id"].partition("/")[0] for member in summary["members"])
    count = format_count(len(summary["members"]), "member")
    if len(jobs) > _SUBMISSIONS_NAMED:
        return f"it has {count}, of {len(jobs)} submissions"
    return f"csub report {' '.join(jobs)} shows all {count}"


def _tell_nothing(summary: Summary, members: Sequence[SummaryMember]) -> str:
    """Why there are no figures: none can be of what has not started, or was not looked at yet."""
    if not any(member["starts"] for member in members):
        return "none: no member has started"
    if summary["final"]:
        return "none: nothing was measured"
    return "none yet: the monitor has not looked at what has just started"


def _tell_speed(pack: SummaryPack) -> str:
    if pack["overlap_s"] <= 0:
        return f"{pack['members']} members, never two at the same time"
    stp = format_figure(pack["stp"])
    if pack["stp"] is None and pack["stp_at_least"] is not None:
        stp = f"at least {format_figure(pack['stp_at_least'])}"
    fairness = pack["fairness"]
    parts = [
        f"STP {stp} with at most {pack['members_most']} of {pack['members']} members at a time",
        f"ANTT {format_figure(pack['antt'])}",
        f"fairness {UNKNOWN if fairness is None else format_figure(fairness['jain'])} (Jain)",
        f"shared for {format_span(pack['overlap_s'])}",
    ]
    return ", ".join(parts)


def _tell_prediction(prediction: SummaryPrediction) -> str:
    # All may never have run at the same time.
    over = "" if prediction["over"] == "together" else " over all that they shared"
    count = format_count(prediction["members"], "member")
    return (
        f"slowdown {prediction['predicted']:.2f} while all run, measured "
        f"{prediction['measured']:.2f}{over} (mean of {count}); "
        f"normalised progress off by {format_share(prediction['error'])}"
    )


def _tell_serial(pack: SummaryPack) -> str:
    serial_s, shared_s = pack["serial_s"], pack["shared_s"]
    if serial_s is None:
        return f"{UNKNOWN}; together it took {format_span(shared_s)}"
    times = f", {serial_s / shared_s:.2f} times as long" if shared_s and shared_s > 0 else ""
    return f"one after the other {format_span(serial_s)}{times}; together {format_span(shared_s)}"


def _tell_saving(pack: SummaryPack) -> str:
    hours, kwh = pack["gpu_hours_saved"], pack["kwh_saved"]
    how = {
        "solo_power": "members' power alone",
        "idle_power": f"{format_figure(pack['idle_power_w'])} W of the idle GPU, "
        f"{pack['idle_power_from']}, over the time saved",
    }.get(pack["kwh_how"] or "", "")
    if hours is None and kwh is None:
        return UNKNOWN
    energy = "energy unknown" if kwh is None else f"{format_figure(kwh)} kWh"
    return f"{format_figure(hours)} GPU hours, {energy}{f' ({how})' if how else ''}"


def _tell_degree(summary: Summary) -> list[str]:
    """Which degree was best, from which numbers, and what measuring has cost."""
    degree = summary["degree"]
    if degree is None:
        return []
    # Most packs have none: what tells of it is loaded for those that have.
    from slurm_colloc.report.speed_words import describe_cost

    told = [degree["why"], describe_cost(degree["cost_s"], degree["cost_share"])]
    ids = {member["member"]: member["id"] for member in summary["members"]}
    told += [_tell_lent(ids[one["member"]], one) for one in degree["cores"] if one["member"] in ids]
    return ["; ".join(text for text in told if text)] if any(told) else []


def _tell_lent(member: str, loan: SummaryCores) -> str:
    """The cores that a member had besides its own."""
    gain = loan["gain"]
    faster = "" if gain is None else f", which made it {1.0 + gain:.2f} times as fast"
    return (
        f"{member} had up to {loan['most']} of {loan['of']} cores instead of {loan['own']}, as it "
        f"waited {format_share(loan['wait_share'])} for data{faster}"
    )


def _tell_gpu(summary: Summary) -> str:
    use = summary["gpu_use"]
    parts, word = [], ""
    for metric, name in (
        ("sm_active", "SM"),
        ("tensor_active", "tensor"),
        ("dram_active", "DRAM"),
        ("utilization", "utilization"),
    ):
        spread = use.get(metric)
        if spread is not None:
            word = say_attribution(spread["attribution"])
            parts.append(
                f"{name} {format_share(spread['mean'])} (p95 {format_share(spread['p95'])})"
            )
    memory = use.get("gpu_memory_mb")
    if memory is not None:
        parts.append(f"memory at most {format_mb_figure(memory['max'])}")
    limit = use.get("power_limit_w")
    if limit is not None:
        parts.append(f"power limit {limit['mean']:.0f} W")
    if summary["energy_j"] is not None:
        parts.append(f"energy {format_energy(summary['energy_j'])}")
    throttled = {k: v for k, v in summary["throttled_s"].items() if v}
    parts += [f"throttled by {name} {format_span(value)}" for name, value in throttled.items()]
    return f"{', '.join(parts)}{f'; {word}' if word else ''}" if parts else UNKNOWN


def _tell_energy(members: Sequence[SummaryMember]) -> list[tuple[str, str]]:
    """Energy per step, and per sample where these were counted."""
    parts = []
    for member in members:
        energy = member["energy_j"]
        if energy is None or not energy["value"] or not member["steps"]:
            continue
        text = f"{member['id']} {format_figure(energy['value'] / member['steps'])} J per step"
        samples = member.get("samples")
        if is_number(samples) and samples:
            text += f", {format_figure(energy['value'] / samples)} J per sample"
        parts.append(text)
    return [("Energy", "; ".join(parts))] if parts else []


def _tell_gpu_memory(members: Sequence[SummaryMember]) -> list[tuple[str, str]]:
    """Who says what the members' peaks of GPU memory are."""
    parts = []
    for source, who in PEAK_SOURCE_WORDS.items():
        peaks = [(m["id"], m["gpu_memory_mb"]) for m in members]
        told = [name for name, peak in peaks if peak and peak["by"] == source]
        if told:
            parts.append(f"by {who}: {name_members(told)}")
    return [("GPU memory", f"peaks {'; '.join(parts)}")] if parts else []


def _tell_unexplained(summary: Summary) -> list[str]:
    unexplained = summary["unexplained"]
    ids = {member["member"]: member["id"] for member in summary["members"]}
    found = []
    sm, energy = unexplained["sm_active"], unexplained["energy_j"]
    if sm is not None and sm["rest"] is not None:
        found.append(
            f"SM activity while sharing: measured {format_share(sm['measured'])}, members by "
            f"their models {format_share(sm['explained'])}, "
            f"{_tell_rest(_divide(sm['rest'], sm['measured']))}{_name_missing(sm, ids)}"
        )
    if energy["rest"] is not None and energy["measured"]:
        share = energy["rest"] / energy["measured"]
        # Rounding of counters, where each member was alone.
        if abs(share) >= _SHARE_LEAST:
            found.append(
                f"energy: measured {format_energy(energy['measured'])}, members "
                f"{format_energy(energy['explained'])}, "
                f"{_tell_rest(share)}{_name_missing(energy, ids)}"
            )
    return found


def _divide(part: float, whole: float | None) -> float:
    return part / whole if whole else 0.0


def _tell_rest(share: float) -> str:
    if share < 0:
        return f"{format_share(-share)} more than there was"
    return f"{format_share(share)} unexplained"


def _name_missing(part: SummaryUnexplained, ids: Mapping[int, str]) -> str:
    missing = [ids[number] for number in part["members_unknown"] if number in ids]
    return f"; nothing is known of {name_members(missing)}" if missing else ""


def _tell_stalls(members: Sequence[SummaryMember]) -> list[tuple[str, str]]:
    """What the time of members went into while they were alone; those that lost most first."""
    stalls = [(member["id"], member["stall"]) for member in members]
    split = [(name, stall) for name, stall in stalls if stall["device"] is not None]
    split.sort(key=lambda pair: pair[1]["device"] or 0.0)
    lines = [("Time", f"{name} {_tell_stall(stall)}") for name, stall in split[:_STALLS_MOST]]
    if len(split) > _STALLS_MOST:
        lines.append(("", f"and {len(split) - _STALLS_MOST} more; --json has all"))
    return lines


def _tell_stall(stall: SummaryStall) -> str:
    word = say_attribution(stall["attribution"] or UNKNOWN)
    device, overlap = format_share(stall["device"]), stall["overlap"]
    if stall["host"] is None:
        text = f"had a kernel running for {device} of its time"
    else:
        text = (
            f"waited {format_share(stall['data_alone'])} of its time for data, at least "
            f"{format_share(stall['host'])} for the host, had a kernel running for {device}"
        )
    if overlap is not None and overlap >= _SHARE_LEAST:
        text += f", at least {format_share(overlap)} both at once"
    return f"{text} (alone for {format_span(stall['alone_s'])}; {word})"


def _tell_interference(begin: float, members: Sequence[SummaryMember]) -> list[tuple[str, str]]:
    found = [(member["id"], entry) for member in members for entry in member["interference"]]
    found.sort(key=lambda pair: -abs(pair[1]["ratio"] - 1))
    lines = []
    for name, entry in sorted(found[:_INTERFERENCE_MOST], key=lambda pair: pair[1]["at"]):
        rates = entry["before_steps_per_s"], entry["after_steps_per_s"]
        before, after = map(format_figure, rates)
        text = (
            f"after {format_span(entry['at'] - begin)} {name} went from {before} to {after} steps/s"
        )
        lines.append(("Change", f"{text}, {_name_company(entry)}"))
    if len(found) > _INTERFERENCE_MOST:
        lines.append(("", f"and {len(found) - _INTERFERENCE_MOST} more; --json has all"))
    return lines


def _name_company(entry: SummaryChange) -> str:
    words = []
    for them, verb in ((entry["came"], "came"), (entry["went"], "went")):
        if numbers := sorted(set(them)):
            shown = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
            words.append(f"{shown} {verb}")
    return f"as {' and '.join(words)}"


def _tell_coverage(coverage: SummaryCoverage | None) -> str:
    if coverage is None:
        return "it did not run: there are no measurements"
    if coverage["not_watched"]:
        return f"it did not run: {coverage['not_watched']}"
    parts = [f"{format_share(coverage['share'])} of its readings"]
    if coverage["gaps"]:
        gaps = format_count(len(coverage["gaps"]), "gap")
        parts.append(f"{gaps}, {format_span(coverage['gap_s'])} in all")
    if coverage["not_readable"]:
        parts.append(f"not readable: {', '.join(sorted(coverage['not_readable']))}")
    return "; ".join(parts)


def format_energy(joules: float | None) -> str:
    """`19.5 Wh`, `1.2 kWh`; `unknown` for None."""
    if joules is None:
        return UNKNOWN
    return f"{joules / 3600:.3g} Wh" if abs(joules) < 3.6e6 else f"{joules / 3.6e6:.3g} kWh"
