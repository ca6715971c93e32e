"""All commands of csub and their options in Markdown, made of the program itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import typer

from slurm_colloc.__main__ import run
from slurm_colloc.cli.admin_command import build_parser
from slurm_colloc.cli.command_groups import list_groups
from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern, Option

_COLUMNS = "90"
_VALUES = {Argument.NONE: "", Argument.REQUIRED: "=VALUE", Argument.OPTIONAL: "[=VALUE]"}
_CONCERNS = {
    Concern.MEMBER: "each job has its own",
    Concern.GROUP: "jobs share where it is equal",
    Concern.SHAPE: "says whether the job can share",
    Concern.ALONE: "the job runs alone",
    Concern.CALL: "concerns this call",
    Concern.REFUSED: "refused",
}


def render_commands() -> str:
    """The reference, to follow a page's own text."""
    os.environ.update(COLUMNS=_COLUMNS, TERMINAL_WIDTH=_COLUMNS)
    group: Any = typer.main.get_command(build_app())
    commands = {name: command for name, command in group.commands.items() if not command.hidden}
    lines = [""]
    for title, listed in list_groups(commands.keys()):
        lines += ["", f"## {title}"]
        for name in listed:
            lines += _render_command(("csub", name), commands.pop(name))
    if commands:
        raise RuntimeError(f"in no group of csub --help: {', '.join(commands)}")
    lines += [*_render_own_options(), *_render_sbatch_options()]
    return "\n".join(lines) + "\n"


def _render_command(words: tuple[str, ...], command: Any) -> Iterator[str]:
    yield from ("", f"{'#' * (len(words) + 1)} {' '.join(words)}", "")
    inner = getattr(command, "commands", None)
    if inner is not None:
        yield escape_text(command.help or "")
        for name, one in inner.items():
            yield from _render_command((*words, name), one)
    elif words == ("csub", "admin"):
        yield from _render_admin(build_parser(), 4)
    elif "help_option_names" in command.context_settings:
        yield from _render_own_help(words[1:])
    else:
        yield from _render_declared(words, command)


def _render_own_help(words: Iterable[str]) -> Iterator[str]:
    """What a command that reads its own words says, and the commands within it."""
    text = _ask_help(words)
    yield from ("```text", text.rstrip(), "```")
    _, found, listed = text.partition("\nCommands:\n")
    for name in re.findall(r"^  ([a-z]+) ", listed if found else "", re.MULTILINE):
        yield from ("", f"#### {' '.join(('csub', *words, name))}", "")
        yield from ("```text", _ask_help([*words, name]).rstrip(), "```")


def _ask_help(words: Iterable[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = run([*words, "--help"])
    if status != 0 or not said.getvalue():
        raise RuntimeError(f"csub {' '.join(words)} --help ends with {status}")
    return said.getvalue()


def _render_declared(words: tuple[str, ...], command: Any) -> Iterator[str]:
    context = click.Context(command, info_name=words[-1])
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    yield from ("```text", usage, "```", "", escape_text(command.help or ""))
    records = [
        record
        for parameter in command.get_params(context)
        if not getattr(parameter, "hidden", False)
        and (record := parameter.get_help_record(context))
    ]
    yield from render_table(
        ("option", "meaning"), [(f"`{name}`", escape_text(text)) for name, text in records]
    )


def _render_admin(parser: Any, depth: int) -> Iterator[str]:
    yield from ("```text", parser.format_help().rstrip(), "```")
    for action in parser._actions:
        for inner in (
            (getattr(action, "choices", None) or {}).values() if action.nargs == "A..." else ()
        ):
            yield from ("", f"{'#' * depth} {inner.prog}", "")
            yield from _render_admin(inner, min(depth + 1, 6))


def _render_own_options() -> Iterator[str]:
    yield from ("", "## csub's own options", "")
    yield "Those of a submission; `#CSUB` lines may hold them, too."
    rows = [(_name_option(option), escape_text(option.reason)) for option in OWN_OPTIONS]
    yield from render_table(("option", "meaning"), rows)


def _render_sbatch_options() -> Iterator[str]:
    yield from ("", "## sbatch's options", "")
    yield "What they ask for, sbatch(1) tells; this is what they mean for sharing a GPU."
    rows = []
    for option in SBATCH_OPTIONS:
        why = f": {option.reason}" if option.reason else ""
        releases = [f"from {option.since}"] if option.since else []
        releases += [f"until {option.until}"] if option.until else []
        rows.append(
            (
                _name_option(option),
                escape_text(_CONCERNS[option.concern] + why),
                " ".join(f"`{name}`" for name in option.env),
                ", ".join(releases),
            )
        )
    yield from render_table(("option", "with csub", "variable", "Slurm"), rows)


def _name_option(option: Option) -> str:
    short = f"-{option.short}, " if option.short else ""
    return f"`{short}--{option.name}{_VALUES[option.argument]}`"


def render_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table, in Markdown; nothing where it has no rows."""
    if not rows:
        return
    yield ""
    for row in (head, tuple("---" for _ in head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def escape_text(text: str) -> str:
    """A text as one line that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!~$&^-])", r"\\\1", " ".join(text.split()))
