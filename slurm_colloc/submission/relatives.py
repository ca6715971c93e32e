"""One usage profile of several relatives that ran on one GPU model; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.plan import KnownBy, UsageProfile
from slurm_colloc.model.profile import ProfileRecord, rates_agree


def agree(records: Sequence[ProfileRecord]) -> bool:
    """Whether relatives on one GPU model tell of each other: by their rates, else SM activity."""
    rates = [record.steps_per_s.mean for record in records if record.steps_per_s is not None]
    if rates:
        return rates_agree(rates)
    return rates_agree([record.sm_active for record in records if record.sm_active is not None])


def merge_relatives(records: Sequence[ProfileRecord], known_by: KnownBy) -> UsageProfile:
    """One profile of several records on one GPU model: means of what is a mean, largest peaks.

    How long a run takes is known only where all of them took the same number of steps.
    """
    profiles = [record.for_planning(known_by) for record in records]
    if len(profiles) == 1:
        return profiles[0]
    values: dict[str, float | int | None] = {}
    for field in dataclasses.fields(UsageProfile):
        known = [
            value
            for profile in profiles
            if isinstance(value := getattr(profile, field.name), int | float)
        ]
        if field.name.endswith("_peak_mb"):
            values[field.name] = max(known, default=None)
        elif known and field.name != "run_s":
            values[field.name] = sum(known) / len(known)
    runs = [profile.run_s for profile in profiles if profile.run_s is not None]
    if runs and rates_agree(runs):
        values["run_s"] = sum(runs) / len(runs)
    return dataclasses.replace(profiles[0], **{"run_s": None, **values})  # type: ignore[arg-type]
