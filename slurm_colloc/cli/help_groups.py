"""`csub --help`: the commands by what one wants to do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from slurm_colloc.cli.command_groups import group_commands


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
