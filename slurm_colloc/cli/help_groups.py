"""`csub --help`: the commands by what one wants to do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Submit", ("submit", "pack", "sweep", "batch", "retry", "probe")),
    ("Before you submit", ("plan", "check", "doctor", "calibrate", "profile")),
    ("Look", ("queue", "why", "explain", "show", "logs", "top")),
    ("Afterwards", ("history", "report", "wait")),
    ("Change", ("cancel", "hold", "release", "requeue", "shell")),
    ("Set up", ("config", "clean", "sandbox", "admin")),
)
"""Titles, and the commands under each."""

OTHERS = "More"


def group_commands(names: list[str]) -> list[tuple[str, list[str]]]:
    """The commands by what they are for; those of no group come last, in their order."""
    known = {name for _, group in GROUPS for name in group}
    found = [(title, [name for name in group if name in names]) for title, group in GROUPS]
    found.append((OTHERS, [name for name in names if name not in known]))
    return [(title, group) for title, group in found if group]


class GroupedCommands(TyperGroup):
    """csub's commands, whose help is grouped."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; typer brings a click of its own, or takes the installed."""
        commands = {
            name: command
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        }
        for title, names in group_commands(list(commands)):
            with formatter.section(title):
                rows = [(name, commands[name].get_short_help_str(limit=200)) for name in names]
                formatter.write_dl(rows, col_max=12)
