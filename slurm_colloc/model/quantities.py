"""Times, sizes and signals as Slurm writes them: parsing, and writing back.

Also: GPUs in `--gres`, `--gpus`, `--gpus-per-*` and `--tres-per-task` values.

Time limits are whole seconds (`None` is no limit), memory is whole MB of 2**20 bytes, as in Slurm.
Every parser raises `ValueError` with one sentence that quotes the text.
"""

from __future__ import annotations

import signal
import time

from slurm_colloc.model.job import SignalRequest
from slurm_colloc.model.late_definitions import dataclass, late_pattern

# Slurm keeps seconds in a C int.
_MAX_TIME_S = 2**31 - 1
# Slurm keeps MB in 64 bits, the two highest values of which have a meaning of their own.
_MAX_MEMORY_MB = 2**63 - 1

_WITH_DAYS = late_pattern(r"(?a)(\d{1,18})-(?:(\d{1,18})(?::(\d{1,18})(?::(\d{1,18}))?)?)?")
_WITHOUT_DAYS = late_pattern(r"(?a)(\d{1,18})(?::(\d{1,18})(?::(\d{1,18}))?)?")
_HOST_MEMORY = late_pattern(r"(?a)\s*\+?(\d{1,18})(?:([kKmMgGtT])[bB]?)?")
_GPU_MEMORY = late_pattern(r"(?a)\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kKmMgGtT])(?:i?[bB])?\s*")

_KB_OF_UNIT = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_TIME_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"


def parse_time_limit_s(text: str) -> int | None:
    """Return the seconds that a `--time` value stands for, or None where it means no limit.

    Takes the forms of sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours,
    days-hours:minutes, days-hours:minutes:seconds, INFINITE and UNLIMITED (any case), -1. Zero
    means no limit, as in sbatch. Parts may exceed 59, also as in sbatch. Slurm itself rounds up
    to minutes when it takes a request; here the seconds stay exact.

    Raises:
        ValueError: The text is not a time limit, or one longer than Slurm can count.
    """
    if text.upper() in ("-1", "INFINITE", "UNLIMITED"):
        return None
    if match := _WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif match := _WITHOUT_DAYS.fullmatch(text):
        first, second, third = match.groups()
        if third is None:
            days, hours, minutes, seconds = 0, 0, int(first), int(second or 0)
        else:
            days, hours, minutes, seconds = 0, int(first), int(second), int(third)
    else:
        raise ValueError(f"{text!r} is not a time limit: write {_TIME_FORMS}, or UNLIMITED")
    time_limit_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if time_limit_s > _MAX_TIME_S:
        raise ValueError(f"{text!r} is longer than Slurm can count: write UNLIMITED for no limit")
    return time_limit_s or None


def format_time_limit(seconds: int | None) -> str:
    """Write a time limit for sbatch: `H:MM:SS`, `D-HH:MM:SS`, or `UNLIMITED` for None.

    The result is exact to the second and reads the same in `parse_time_limit_s`.

    Raises:
        ValueError: The time is not positive; sbatch would take 0 for no limit.
    """
    if seconds is None:
        return "UNLIMITED"
    if seconds <= 0:
        raise ValueError(f"a time limit of {seconds} s cannot be asked for: 0 means no limit")
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    if hours < 24:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{hours // 24}-{hours % 24:02}:{minutes:02}:{rest:02}"


_AGE = late_pattern(r"(?a)(\d{1,9})([smhdw])")
_AGE_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age_s(text: str) -> int:
    """Return the seconds that an age such as `30d`, `12h`, `90m`, `45s` or `2w` stands for.

    Raises:
        ValueError: The text is not an age.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an age: write a number and s, m, h, d or w, as in 30d")
    return int(match[1]) * _AGE_UNIT_S[match[2]]


def format_elapsed(seconds: int) -> str:
    """Write an elapsed time as squeue prints it: `M:SS`, `H:MM:SS` or `D-HH:MM:SS`.

    Negative times (a clock that was set back) are shown as `0:00`.
    """
    seconds = max(seconds, 0)
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02}"
    return format_time_limit(seconds)


def parse_host_memory_mb(text: str) -> int:
    """Return the MB that a `--mem`, `--mem-per-cpu` or `--mem-per-gpu` value stands for.

    A whole number with the suffix K, M, G or T (either case, a B may follow), M where there is
    none; K is rounded up to MB. 0 is returned as 0: to `--mem` it means all memory of the node.

    Raises:
        ValueError: The text is no size.
    """
    match = _HOST_MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a host memory size: write a whole number and K, M, G or T, as in 16G"
        )
    return _round_up_to_mb(text, int(match[1]) * _KB_OF_UNIT[(match[2] or "M").upper()])


def parse_gpu_memory_mb(text: str) -> int:
    """Return the MB that a GPU memory size stands for, rounded up.

    As host memory, but the unit must be given (a bare 20 could mean 20 GB or 20 MB), it may be
    written GiB, a decimal point is allowed, and the size must be more than 0.

    Raises:
        ValueError: The text is no size, has no unit, or is zero.
    """
    match = _GPU_MEMORY.fullmatch(text)
    if match is None:
        hint = "give the unit" if text.strip().isdecimal() else "write a number and its unit"
        raise ValueError(f"{text!r} is not a GPU memory size: {hint}, as in 20G or 800M")
    whole, _, fraction = match[1].partition(".")
    # In whole numbers throughout: a float would make 0.1T an MB too much.
    scale = 10 ** len(fraction)
    kb = -(-int(whole + fraction) * _KB_OF_UNIT[match[2].upper()] // scale)
    if kb == 0:
        raise ValueError(f"{text!r} is not a GPU memory size: it must be more than 0")
    return _round_up_to_mb(text, kb)


def _round_up_to_mb(text: str, kb: int) -> int:
    memory_mb = -(-kb // 1024)
    if memory_mb > _MAX_MEMORY_MB:
        raise ValueError(f"{text[:40]!r} is more memory than Slurm can count")
    return memory_mb


def format_count(count: int, noun: str) -> str:
    """`1 member`, `3 members`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_moment(at: float) -> str:
    """A moment on this machine's clock, as sacct writes it: `2026-03-01T14:05:09`."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def format_mb(memory_mb: int) -> str:
    """Write a size in MB with the largest unit that keeps it whole: `20G`, `1536M`, `0`.

    The result is exact and reads the same in `parse_host_memory_mb`.
    """
    if memory_mb == 0:
        return "0"
    for unit, size_mb in (("T", 1024**2), ("G", 1024)):
        if memory_mb % size_mb == 0:
            return f"{memory_mb // size_mb}{unit}"
    return f"{memory_mb}M"


_REQUEST = late_pattern(
    r"(?a)(?P<flags>[Rr]?[Bb]?[Rr]?):?(?P<signal>[^@]*)(?:@(?P<seconds>(?:[ \t]*[+]?\d{1,18})?))?"
)
_SIGNAL_NUMBER = late_pattern(r"(?a)\s*(\d{1,9})\s*")
_SIGNAL_NAMES = (
    "HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP",
    "TSTP", "TTIN", "TTOU", "XCPU",
)  # fmt: skip
"""Those that Slurm knows by name (proc_args.c); all others have numbers."""
_LARGEST_SIGNAL = 64
DEFAULT_SECONDS_BEFORE_END = 60


def parse_signal(text: str) -> int:
    """Read `USR1`, `SIGUSR1` or `10`, in any case and with blanks around, as Slurm does.

    Raises:
        ValueError: There is no such signal.
    """
    match = _SIGNAL_NUMBER.fullmatch(text)
    if match and 1 <= int(match[1]) <= _LARGEST_SIGNAL:
        return int(match[1])
    name = text.strip().upper().removeprefix("SIG")
    if name not in _SIGNAL_NAMES:
        shown = ", ".join(_SIGNAL_NAMES)
        raise ValueError(f"there is no signal {text!r}: write 1 to {_LARGEST_SIGNAL}, {shown}")
    return int(signal.Signals[f"SIG{name}"])


def parse_signal_request(text: str) -> SignalRequest:
    """Read `[{R|B}:]SIG[@SECONDS]` of --signal; letters in any case, and `@` alone is 0 seconds.

    Raises:
        ValueError: It is something else.
    """
    match = _REQUEST.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not of the form [B:]SIGNAL[@SECONDS]")
    seconds = DEFAULT_SECONDS_BEFORE_END
    if match["seconds"] is not None:
        seconds = int(match["seconds"] or 0)
    if seconds > 0xFFFF:
        raise ValueError(f"{text!r}: at most 65535 seconds before the end")
    return SignalRequest(parse_signal(match["signal"]), seconds, "B" in match["flags"].upper())


# ---- GPUs in `--gres`, `--gpus`, `--gpus-per-*` and `--tres-per-task` values ---------------------

_COUNT = late_pattern(r"(?a)(\d{1,18})([kKmMgGtTpP]?)")
_TYPE = late_pattern(r"[^\s:=,/()\[\]]+")
_POWER_OF_1024 = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs that one option asks for.

    Attributes:
        count: How many; 0 where the value names none.
        type: The GRES type, or None where none, or more than one, is named.
        other_gres: The entries that name no GPU, as they were written.
    """

    count: int
    type: str | None = None
    other_gres: tuple[str, ...] = ()


def parse_gpu_request(text: str, *, option: str = "gres") -> GpuRequest:
    """Return what a value of a GPU option asks for.

    `gres` takes `name[[:type]:count]` with commas between entries, also written `gres/name` and
    with `=` before the count, and `none`. `gpus`, `gpus-per-node`, `gpus-per-socket` and
    `gpus-per-task` take `[type:]count`. `tres-per-task` takes `gres/gpu[:type]=count` among other
    entries. A missing count is 1 (Slurm 26.05, `slurm_get_next_tres`). Counts of several GPU
    types add up; of one type the last counts (`_get_next_job_gres`).

    Args:
        text: The value.
        option: The long name of the option without dashes.

    Raises:
        ValueError: An entry is malformed.
    """
    counts: dict[str | None, int] = {}
    others: list[str] = []
    if option == "gres" and text.lower() == "none":
        return GpuRequest(0)
    entries = [entry for entry in text.split(",") if entry]
    if not entries:
        raise ValueError(f"--{option}={text} names nothing: write for example {_EXAMPLE[option]}")
    for entry in entries:
        gpu = _split_gpu_entry(entry, option)
        if gpu is None:
            others.append(entry)
            continue
        entry_type, entry_count = _parse_type_and_count(gpu, f"--{option}={text}", option)
        counts[entry_type] = entry_count
    types = [name for name, count in counts.items() if count]
    only_type = types[0] if len(types) == 1 else None
    return GpuRequest(sum(counts.values()), only_type, tuple(others))


_EXAMPLE = {
    "gres": "gpu:1",
    "gpus": "1",
    "gpus-per-node": "1",
    "gpus-per-socket": "1",
    "gpus-per-task": "1",
    "tres-per-task": "cpu=4,gres/gpu=1",
}


def _split_gpu_entry(entry: str, option: str) -> str | None:
    """Return what follows the name `gpu`, separator included, or None where the name is another."""
    if option.startswith("gpus"):
        return f":{entry}"
    prefixes = ("gres/gpu", "gres:gpu", *(() if option == "tres-per-task" else ("gpu",)))
    for prefix in prefixes:
        rest = entry.removeprefix(prefix)
        if rest != entry and (not rest or rest[0] in ":="):
            return rest
    return None


def _parse_type_and_count(rest: str, whole: str, option: str) -> tuple[str | None, int]:
    """Read `""`, `:count`, `=count`, `:type`, `:type:count` or `:type=count`."""
    if not rest:
        return None, 1
    separator_at = rest.rfind("=") if "=" in rest else rest.rfind(":")
    last = rest[separator_at + 1 :]
    gpu_type: str | None = rest[1:separator_at] if separator_at else None
    if match := _COUNT.fullmatch(last):
        count = int(match[1]) * 1024 ** _POWER_OF_1024[match[2].upper()]
    elif rest[separator_at] == ":" and gpu_type is None:
        gpu_type, count = last, 1
    else:
        raise ValueError(
            f"{whole}: {last!r} is not a number of GPUs: write for example {_EXAMPLE[option]}"
        )
    if gpu_type is not None and not _TYPE.fullmatch(gpu_type):
        raise ValueError(
            f"{whole}: {gpu_type!r} is not a GPU type: write for example {_EXAMPLE[option]}"
        )
    return gpu_type, count
