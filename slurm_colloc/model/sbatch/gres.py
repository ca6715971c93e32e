"""GPUs in `--gres`, `--gpus`, `--gpus-per-*` and `--tres-per-task` values."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNT = re.compile(r"(\d{1,18})([kKmMgGtTpP]?)", re.ASCII)
_TYPE = re.compile(r"[^\s:=,/()\[\]]+")
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
