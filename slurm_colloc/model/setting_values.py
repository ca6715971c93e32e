"""Which values the settings may have; pure.

Also: the settings that a pack's runner goes by, which pack.json holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import OWN_ID, REAL_ID
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import Goal
from slurm_colloc.model.quantities import parse_gpu_memory_mb, parse_time_limit_s

JOIN_CHOICES = ("auto", "pending", "never")
JOIN_ALWAYS = "always"
"""As `auto`, also where a program reads the answer."""
OPEN_CHOICES = ("auto", "always", "never")
PRIVATE_TMP_CHOICES = ("auto", "always", "never")
HOOK_CHOICES = ("auto", "always", "never")
ACCESS_CHOICES = ("auto", "commands", "pyslurm")
ACTIVITY_CHOICES = ("gpm", "dcgm")
GOAL_CHOICES = tuple(goal.value for goal in Goal)
GPU_COUNTS = ("auto", "node")
"""What `gpus_per_pack` may be besides a number."""
GPUS_MOST = 64
"""GPUs of a pack."""

SLOWDOWN_MOST = 100
"""A user who accepts a larger slowdown means something else."""

_RANGES: Mapping[str, tuple[float, float]] = {
    "degree": (1, 10_000),
    "pack_size": (0, 100_000),
    "members_per_pack": (0, 100_000),
    "slowdown_bound": (1, SLOWDOWN_MOST),
    "start_margin_s": (0, 86_400),
    # Slurm takes no longer KillWait (slurm.conf(5)).
    "kill_wait_s": (0, 65_533),
    "monitor_interval_s": (0.5, 60),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "launcher": ("auto", "srun", "process"),
    "join": (*JOIN_CHOICES, JOIN_ALWAYS),
    "open": OPEN_CHOICES,
    "hooks": HOOK_CHOICES,
    "job_id": ("auto", OWN_ID, REAL_ID),
    "private_tmp": PRIVATE_TMP_CHOICES,
    "slurm_access": ACCESS_CHOICES,
    "goal": GOAL_CHOICES,
    "activity_source": ACTIVITY_CHOICES,
    "gpu_names": ("auto", "index", "uuid"),
    "share": (
        "auto",
        "mps",
        "mps!",
        "mig",
        "mig!",
        "timeslice",
        "timeslice!",
        "exclusive",
        "exclusive!",
    ),
}


_CAP_CHOICES: Mapping[str, tuple[str, ...]] = {"join": JOIN_CHOICES}
"""Of `[caps]`, where they differ."""


def check_values(path: str, values: Mapping[str, Any]) -> None:
    """Check ranges.

    Args:
        path: The file, for messages.
        values: Its values, each of the right kind.

    Raises:
        UsageProblem: A value is out of its range.
    """
    caps = values.get("caps", {})
    _check_ranges(path, values, "")
    _check_ranges(path, caps, "caps.")
    try:
        check_gpus_per_pack(values.get("gpus_per_pack", "auto"))
    except ValueError as error:
        shown = values["gpus_per_pack"]
        raise UsageProblem(f"{path}: gpus_per_pack = {shown!r}: {error}") from error
    feature = values.get("hook_feature", "")
    if not all(letter.isalnum() or letter in "_-.:" for letter in feature):
        raise UsageProblem(f"{path}: hook_feature = {feature!r} must be the name of one feature")
    for pattern in filter(None, values.get("own_directories", "").split(":")):
        if not re.fullmatch(r"/[^/%]+(/[^/]+)*/[^/]*%j[^/]*|/[^/%]+/[^/]*%j[^/]*", pattern):
            raise UsageProblem(
                f"{path}: own_directories: {pattern!r} must be a path with %j in its last part"
            )
    for gpu_type, text in values.get("gpu_memory", {}).items():
        try:
            parse_gpu_memory_mb(str(text))
        except ValueError as error:
            raise UsageProblem(f"{path}: gpu_memory.{gpu_type}: {error}") from error
    if caps.get("pack_time"):
        try:
            parse_time_limit_s(caps["pack_time"])
        except ValueError as error:
            raise UsageProblem(f"{path}: caps.pack_time: {error}") from error


def check_gpus_per_pack(text: str) -> str:
    """How many GPUs a pack is to have, as it was written.

    Raises:
        ValueError: It is neither a number of GPUs, nor `node`, nor `auto`.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= 3
    if text in GPU_COUNTS or (is_number and 1 <= int(text) <= GPUS_MOST):
        return text
    raise ValueError(f"a number from 1 to {GPUS_MOST}, node or auto is needed")


def _check_ranges(path: str, values: Mapping[str, Any], prefix: str) -> None:
    for name, (least, most) in _RANGES.items():
        # TOML has inf and nan, and the latter is in no range.
        if name in values and not least <= values[name] <= most:
            raise UsageProblem(
                f"{path}: {prefix}{name} = {values[name]} must be from {least:g} to {most:g}"
            )
    for name, choices in {**_CHOICES, **(_CAP_CHOICES if prefix else {})}.items():
        if name in values and values[name] not in choices:
            raise UsageProblem(
                f"{path}: {prefix}{name} = {values[name]!r} must be "
                f"{', '.join(choices[:-1])} or {choices[-1]}"
            )


# ---- The settings that a pack's runner goes by, which pack.json holds ----------------------------


@dataclass(frozen=True)
class RunnerSettings:
    """What was set when a pack was submitted; slurm_colloc.settings explains each.

    Attributes:
        launcher: See Settings, like the others.
        kill_wait_s: See there.
        monitor: See there.
        instrument: See there.
        pause: See there.
        door: See there.
        monitor_interval_s: See there.
        activity_source: See there.
        gpu_names: See there.
        private_tmp: See there.
        own_directories: See there.
    """

    launcher: str = "auto"
    kill_wait_s: int = 0
    monitor: bool = True
    instrument: bool = True
    pause: bool = True
    door: bool = True
    monitor_interval_s: float = 1.0
    activity_source: str = "gpm"
    gpu_names: str = "auto"
    private_tmp: str = "auto"
    own_directories: str = ""
