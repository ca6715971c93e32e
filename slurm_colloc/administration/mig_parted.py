"""How a node's GPUs are divided, in the file format of NVIDIA's mig-parted (YAML, v1); pure.

The format and what counts as equal are those of mig-parted v0.15.0 (api/spec/v1, cmd/.../assert):
a GPU is known by its NVML index, its layout by how many it has of each profile, not by where they
lie. JSON is YAML, and mig-parted reads and writes it as well.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.printable import cut, escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = "v1"
_PROFILE = re.compile(
    r"(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]{0,3}gb(?:[+-](?:me\.all|me|gfx)(?:,(?:me\.all|me|gfx))*)?"
)


@dataclass(frozen=True)
class DividedGpu:
    """A GPU of this node.

    Args:
        index: Its number in NVML.
        device_id: Its PCI device and vendor, such as 0x233010DE; empty where unknown.
        is_on: Its MIG mode; None where it has none.
        profiles: How many it has of each profile.
    """

    index: int
    device_id: str
    is_on: bool | None
    profiles: Mapping[str, int]


@dataclass(frozen=True)
class GpuWish:
    """One entry of a configuration.

    Args:
        filters: PCI device ids of the GPUs that it is about; empty for all.
        indices: Their numbers; None for all.
        is_on: Their MIG mode.
        profiles: How many they are to have of each profile.
    """

    filters: tuple[str, ...]
    indices: tuple[int, ...] | None
    is_on: bool
    profiles: Mapping[str, int]

    def is_about(self, gpu: DividedGpu) -> bool:
        """Whether a GPU is meant."""
        return (not self.filters or gpu.device_id.lower() in self.filters) and (
            self.indices is None or gpu.index in self.indices
        )


# -- writing --------------------------------------------------------------------------------------


def build_export(gpus: Sequence[DividedGpu], label: str) -> dict[str, Any]:
    """The configuration that stands, alike GPUs together, as `nvidia-mig-parted export` has it."""
    groups: dict[tuple[bool, frozenset[tuple[str, int]]], list[DividedGpu]] = {}
    for gpu in gpus:
        key = (bool(gpu.is_on), frozenset(gpu.profiles.items()))
        groups.setdefault(key, []).append(gpu)
    ids = {gpu.device_id for gpu in gpus}
    entries = []
    for (is_on, _), alike in groups.items():
        mine = {gpu.device_id for gpu in alike}
        entry: dict[str, Any] = {}
        if len(groups) > 1 and len(ids) > 1 and "" not in ids:
            entry["device-filter"] = sorted(mine) if len(mine) > 1 else min(mine)
        is_all = len(alike) == sum(gpu.device_id in mine for gpu in gpus)
        entry["devices"] = "all" if is_all else [gpu.index for gpu in alike]
        entry["mig-enabled"] = is_on
        entry["mig-devices"] = dict(sorted(alike[0].profiles.items()))
        entries.append(entry)
    return {"version": VERSION, "mig-configs": {label: entries}}


def render_yaml(spec: Mapping[str, Any]) -> str:
    """A configuration that `build_export` has made, as mig-parted writes it."""
    lines = [f"version: {spec['version']}", "mig-configs:"]
    for label, entries in spec["mig-configs"].items():
        lines.append(f"  {label}:")
        for entry in entries:
            mark = "  - "
            for key, value in entry.items():
                lines += _render_pair(f"{mark}{key}", value)
                mark = "    "
    return "\n".join(lines) + "\n"


def _render_pair(head: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"{head}: {str(value).lower()}"]
    if isinstance(value, list):
        return [f"{head}: {json.dumps(value)}"]
    if isinstance(value, dict):
        if not value:
            return [f"{head}: {{}}"]
        return [f"{head}:", *(f"      {name}: {count}" for name, count in value.items())]
    # Without quotes a device's id is a number in YAML.
    return [f"{head}: {value if value == 'all' else json.dumps(value)}"]


# -- reading --------------------------------------------------------------------------------------


def choose_configuration(spec: Any, label: str, origin: str) -> tuple[GpuWish, ...]:
    """Read one configuration of a file.

    Args:
        spec: The file's value.
        label: Which configuration; empty for the only one.
        origin: The file, for messages.

    Raises:
        UsageProblem: The file is not of that format, or has no such configuration.
    """
    if not isinstance(spec, dict) or spec.get("version") != VERSION:
        raise UsageProblem(f"{origin} is not a configuration of mig-parted's, version {VERSION}")
    configurations = spec.get("mig-configs")
    unknown = set(map(str, spec)) - {"version", "mig-configs"}
    if unknown or not isinstance(configurations, dict) or not configurations:
        what = f"has the unknown key {_show(min(unknown))}" if unknown else "has no mig-configs"
        raise UsageProblem(f"{origin} {what}")
    if not label and len(configurations) > 1:
        raise UsageProblem(
            f"{origin} has {len(configurations)} configurations", hint="choose one with -c LABEL"
        )
    chosen = configurations.get(label) if label else next(iter(configurations.values()))
    if chosen is None:
        raise UsageProblem(f"{origin} has no configuration {_show(label)}")
    if not isinstance(chosen, list) or not chosen:
        raise UsageProblem(f"{origin} has a configuration without entries")
    return tuple(_read_wish(entry, origin) for entry in chosen)


def _read_wish(entry: Any, origin: str) -> GpuWish:
    if not isinstance(entry, dict):
        raise UsageProblem(f"{origin} has an entry that is not a mapping: {_show(entry)}")
    known = {"device-filter", "devices", "mig-enabled", "mig-devices"}
    unknown = set(map(str, entry)) - known
    if unknown:
        raise UsageProblem(f"{origin} has the unknown key {_show(min(unknown))}")
    filters, indices = entry.get("device-filter", []), entry.get("devices")
    is_on, profiles = entry.get("mig-enabled"), entry.get("mig-devices") or {}
    filters = [filters] if isinstance(filters, str) else filters
    if not isinstance(filters, list) or not all(isinstance(one, str) for one in filters):
        raise UsageProblem(f"{origin} has no list of texts as device-filter: {_show(filters)}")
    if indices != "all" and not (isinstance(indices, list) and all(map(_is_count, indices))):
        raise UsageProblem(f"{origin} has neither numbers nor all as devices: {_show(indices)}")
    if not isinstance(is_on, bool):
        raise UsageProblem(f"{origin} has neither true nor false as mig-enabled: {_show(is_on)}")
    if not isinstance(profiles, dict) or not all(
        isinstance(name, str) and _PROFILE.fullmatch(name) and _is_count(count)
        for name, count in profiles.items()
    ):
        raise UsageProblem(f"{origin} has no profiles with counts as mig-devices")
    if profiles and not is_on:
        raise UsageProblem(f"{origin} has mig-devices where mig-enabled is false")
    return GpuWish(
        tuple(text.lower() for text in filters),
        None if indices == "all" else tuple(indices),
        is_on,
        {name: count for name, count in profiles.items() if count},
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _show(value: Any) -> str:
    return escape_controls(cut(str(value)))


# -- comparing ------------------------------------------------------------------------------------


def find_differences(
    wishes: Sequence[GpuWish], gpus: Sequence[DividedGpu], *, mode_only: bool = False
) -> tuple[str, ...]:
    """Say where GPUs are not as a configuration wants them; empty where all are.

    A GPU that no entry is about is a difference too, as it is for mig-parted.

    Args:
        wishes: The configuration; where several entries are about a GPU the last one holds.
        gpus: All GPUs of the node.
        mode_only: Look at MIG modes alone.
    """
    told = []
    for gpu in gpus:
        wanted = [wish for wish in wishes if wish.is_about(gpu)]
        if not wanted:
            if not mode_only:
                told.append(f"GPU {gpu.index}: no entry is about it")
            continue
        wish = wanted[-1]
        if wish.is_on != bool(gpu.is_on):
            told.append(f"GPU {gpu.index}: MIG is {_name(gpu.is_on)}, not {_name(wish.is_on)}")
        elif not mode_only and wish.is_on and Counter(wish.profiles) != Counter(gpu.profiles):
            told.append(
                f"GPU {gpu.index}: it has {_list(gpu.profiles)}, not {_list(wish.profiles)}"
            )
    return tuple(told)


def _name(is_on: bool | None) -> str:
    return "on" if is_on else "off" if is_on is not None else "not to be had"


def _list(profiles: Mapping[str, int]) -> str:
    words = [f"{count} x {name}" for name, count in sorted(profiles.items()) if count]
    return ", ".join(words) or "no instances"
