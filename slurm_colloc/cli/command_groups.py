"""csub's commands by what one wants to do; light, so that completion is quick."""

from __future__ import annotations

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Submit", ("submit", "pack", "sweep", "batch", "retry", "probe", "notebook")),
    ("Before you submit", ("plan", "check", "doctor", "calibrate", "profile")),
    ("Look", ("queue", "why", "explain", "show", "logs", "top")),
    ("Afterwards", ("history", "report", "compare", "track", "wait")),
    ("Change", ("cancel", "hold", "release", "requeue", "shell")),
    ("Set up", ("config", "clean", "tutorial", "sandbox", "admin")),
)
"""Titles, and the commands under each."""

OTHERS = "More"


def group_commands(names: list[str]) -> list[tuple[str, list[str]]]:
    """The commands by what they are for; those of no group come last, in their order."""
    known = {name for _, group in GROUPS for name in group}
    found = [(title, [name for name in group if name in names]) for title, group in GROUPS]
    found.append((OTHERS, [name for name in names if name not in known]))
    return [(title, group) for title, group in found if group]
