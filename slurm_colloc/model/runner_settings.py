"""The settings that a pack's runner goes by: they travel with the pack."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    launcher: str = "auto"
    kill_wait_s: int = 0
    monitor: bool = True
    instrument: bool = True
    pause: bool = True
    door: bool = True
    monitor_interval_s: float = 1.0
    activity_source: str = "gpm"
