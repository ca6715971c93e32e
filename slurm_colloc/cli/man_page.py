"""`csub --man`: the manual page, made of the help."""

from __future__ import annotations

import re
import time
from typing import Any

from slurm_colloc import __version__
from slurm_colloc.cli.command_groups import list_groups
from slurm_colloc.slurm.option_table import Argument
from slurm_colloc.slurm.options import OWN_OPTIONS

_SYNOPSIS = (
    "csub [OPTIONS] SCRIPT [ARGUMENTS]",
    "csub sweep [OPTIONS] SCRIPT --lr 0.1,0.2",
    "csub batch [OPTIONS] TABLE",
    "csub COMMAND [OPTIONS] [ID]...",
)
_TEXT = (
    "csub submits scripts as sbatch(1) does, with the same options, #SBATCH lines and SBATCH_* "
    "variables. Jobs that came together, or for which there is room, share the GPU of one ordinary "
    "Slurm allocation, a pack; each is a member with its own output, exit code, limits and report, "
    "and is called 4711/3."
)
_IDS = (
    "4711 means all members of a submission, 4711/3 or 4711/2-5,8 some, last the newest "
    "submission, all every member that has not ended. --state, --name and --where narrow it down."
)
_EXIT = (
    "0 is success. 2: something in the call is wrong. 1 and 3 to 7 are listed in docs/json.md. "
    "csub wait ends with the worst member's exit status."
)
_SEE = "sbatch(1), squeue(1), scancel(1), sacct(1)"


def render_man() -> str:
    """The page, for man(1)."""
    lines = [
        f'.TH CSUB 1 "{time.strftime("%Y-%m-%d")}" "csub {__version__}" "User Commands"',
        ".SH NAME",
        r"csub \- share a GPU between jobs inside one ordinary Slurm allocation",
        ".SH SYNOPSIS",
        *(line for text in _SYNOPSIS for line in (f".B {escape_roff(text)}", ".br")),
        ".SH DESCRIPTION",
        escape_roff(_TEXT),
        ".PP",
        escape_roff(_IDS),
        ".SH COMMANDS",
    ]
    commands = _list_commands()
    for title, names in list_groups(commands):
        lines.append(f".SS {escape_roff(title)}")
        for name in names:
            lines += _render_command(name, commands[name])
    lines.append(".SH OPTIONS")
    lines.append("All options of sbatch(1), and csub's own, which #CSUB lines may hold, too:")
    for option in OWN_OPTIONS:
        value = "" if option.argument is Argument.NONE else "=VALUE"
        lines += [".TP", f".B {escape_roff(f'--{option.name}{value}')}", escape_roff(option.reason)]
    lines += [".SH EXIT STATUS", escape_roff(_EXIT), ".SH SEE ALSO", escape_roff(_SEE)]
    return "\n".join(lines) + "\n"


def escape_roff(text: str) -> str:
    """A text as one line that roff prints as it is."""
    plain = re.sub(r"\s+", " ", text).strip().replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


def _list_commands() -> dict[str, Any]:
    import typer

    from slurm_colloc.cli.subcommands import build_app

    group: Any = typer.main.get_command(build_app())
    return {name: command for name, command in group.commands.items() if not command.hidden}


def _render_command(name: str, command: Any) -> list[str]:
    lines = [".TP", f".B {escape_roff(f'csub {name}')}", escape_roff(command.help or "")]
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        if getattr(parameter, "hidden", False) or not text or not parameter.opts[0].startswith("-"):
            continue
        named = ", ".join(reversed([*parameter.opts, *parameter.secondary_opts]))
        lines += [".RS", ".TP", f".B {escape_roff(named)}", escape_roff(text), ".RE"]
    return lines
