"""csub's subcommands, declared for typer in the order of `csub --help`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slurm_colloc import __version__
from slurm_colloc.cli import arguments
from slurm_colloc.cli.arguments import Json, Name, States, Targets, Where
from slurm_colloc.cli.command_groups import list_groups, list_installed, render_help
from slurm_colloc.errors import UsageProblem
from slurm_colloc.session.selection import choose
from slurm_colloc.session.session import Session, note, say


class GroupedCommands(TyperGroup):
    """csub's commands, whose help is grouped."""

    def get_help(self, ctx: Any) -> str:  # noqa: ARG002 - typer's
        """The text of `csub --help`, as it is printed without typer."""
        return render_help(list_installed()).rstrip("\n")


def shell(
    target: Annotated[str, typer.Argument(help="4711/3", metavar="ID")],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Run this instead of your shell.", metavar="[-- COMMAND...]"),
    ] = None,
) -> None:
    """Open a shell inside a running member: its CPUs, memory limit, GPU and environment."""
    from slurm_colloc.cli.logs_and_shell import enter

    words = command or []
    sys.exit(enter(Session.open_own(), target, words[words[:1] == ["--"] :]))


def cancel(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before jobs of several submissions end.")
    ] = False,
) -> None:
    """End members: SIGTERM, and SIGKILL after Slurm's KillWait."""
    from slurm_colloc.session import cancel_and_requeue

    choice = choose(targets, state, name, where)
    sys.exit(cancel_and_requeue.cancel(Session.open_own(), choice, yes=yes))


def hold(targets: Targets = None, state: States = "", name: Name = "", where: Where = None) -> None:
    """Keep waiting members from starting."""
    from slurm_colloc.cli import hold_and_wait

    choice = choose(targets, state, name, where)
    sys.exit(hold_and_wait.hold(Session.open_own(), choice))


def release(
    targets: Targets = None, state: States = "", name: Name = "", where: Where = None
) -> None:
    """Let held members start."""
    from slurm_colloc.cli import hold_and_wait

    choice = choose(targets, state, name, where)
    sys.exit(hold_and_wait.release(Session.open_own(), choice))


def requeue(
    targets: Targets = None, state: States = "", name: Name = "", where: Where = None
) -> None:
    """Start running members again; a whole pack goes back into Slurm's queue."""
    from slurm_colloc.session import cancel_and_requeue

    choice = choose(targets, state, name, where)
    sys.exit(cancel_and_requeue.requeue(Session.open_own(), choice))


def wait(targets: Targets = None, state: States = "", name: Name = "", where: Where = None) -> None:
    """Wait until members have ended; exit with the worst one's status, and name it."""
    from slurm_colloc.cli.hold_and_wait import wait_for

    choice = choose(targets, state, name, where)
    sys.exit(wait_for(Session.open(asks_often=True), choice, tells=True))


def config(
    name: Annotated[str, typer.Argument(help="One setting.", show_default=False)] = "",
    value: Annotated[
        str | None, typer.Argument(help="Its new value, in your own file.", show_default=False)
    ] = None,
    unset: Annotated[
        str, typer.Option("--unset", metavar="NAME", help="Remove a setting from your own file.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the settings and where each comes from, or change your own."""
    from slurm_colloc.cli import config_and_clean

    if unset:
        if name:
            raise UsageProblem("--unset takes no other arguments", hint="csub config --unset NAME")
        config_and_clean.unset(unset)
    elif value is not None:
        config_and_clean.change(name, value)
    else:
        say(config_and_clean.show(name, as_json=as_json))


def clean(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Over for at least this long.")
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove csub's own files of packs that are over; never your output."""
    from slurm_colloc.cli.config_and_clean import clean as run_clean

    session = Session.open() if dry_run else Session.open_own()
    say(run_clean(session, older_than, dry_run=dry_run))
    for text in dict.fromkeys(map(str, session.damaged)):
        note(f"left as it is: {text}")


_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """Options before a subcommand."""
    if version:
        say(f"csub {__version__}")
        sys.exit(0)


def _run_elsewhere() -> None:
    """Stand for the commands that read their own words, which typer only lists."""


_HERE = (cancel, hold, release, requeue, wait, config, clean)
_ELSEWHERE = {
    "queue": "queue_and_history", "history": "queue_and_history",
    "show": "queue_and_history", "why": "queue_and_history",
    "explain": "queue_and_history", "logs": "queue_and_history",
    "report": "report_commands", "compare": "report_commands",
    "track": "report_commands", "top": "top_command", "profile": "profile_command",
    "doctor": "doctor_command",
}  # fmt: skip
"""Where the function, or the group of commands, of that name is declared."""


def build_app(only: str = "") -> typer.Typer:
    """Declare csub's commands for typer.

    Args:
        only: The command that is called, so that the others are not loaded; empty for all.
    """
    app = typer.Typer(
        name="csub",
        cls=GroupedCommands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    declared_here = {*_ELSEWHERE, *(command.__name__ for command in (*_HERE, shell))}
    for _, group in list_groups(list_installed()) if not only else ():
        for name, said in group.items():
            if name not in declared_here:
                app.command(name, help=said, context_settings=_RAW)(_run_elsewhere)
    for name, module in _ELSEWHERE.items():
        if only in ("", name):
            commands = vars(import_module(f"slurm_colloc.cli.{module}"))
            # Typer reads annotations, whose names these modules do not load.
            commands.update((known, getattr(arguments, known)) for known in arguments.__all__)
            declared = commands[name]
            if isinstance(declared, typer.Typer):
                app.add_typer(declared)
            else:
                app.command()(declared)
    for command in _HERE:
        if only in ("", command.__name__):
            app.command()(command)
    if only in ("", shell.__name__):
        app.command(context_settings={"allow_interspersed_args": False})(shell)
    return app
