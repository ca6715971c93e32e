"""Every word of the tables and of `--detail`, explained: for `csub explain` and as hints; pure.

docs/report.md has the formulas.
"""

from __future__ import annotations

from slurm_colloc.metrics.attribution import Attribution
from slurm_colloc.model.plan import PeakSource

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
