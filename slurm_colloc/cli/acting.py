"""csub's subcommands that change something, or wait for it; the work is done elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from slurm_colloc.cli.arguments import Json, Name, States, Targets, choose
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import UsageProblem


def shell(
    target: Annotated[str, typer.Argument(help="4711/3", metavar="ID")],
    command: Annotated[
        list[str] | None, typer.Argument(help="Instead of your shell.", metavar="[-- COMMAND...]")
    ] = None,
) -> None:
    """Open a shell inside a running member: its CPUs, memory limit, GPU and environment."""
    from slurm_colloc.cli.entering import enter

    words = command or []
    raise typer.Exit(enter(Session.open_own(), target, words[words[:1] == ["--"] :]))


def cancel(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before jobs of several submissions end.")
    ] = False,
) -> None:
    """End members: SIGTERM, and SIGKILL after Slurm's KillWait."""
    from slurm_colloc.cli import cancelling

    choice = choose(targets, state, name)
    raise typer.Exit(cancelling.cancel(Session.open_own(), choice, yes=yes))


def hold(targets: Targets = None, state: States = "", name: Name = "") -> None:
    """Keep members that wait from starting."""
    from slurm_colloc.cli import holding

    choice = choose(targets, state, name)
    raise typer.Exit(holding.hold(Session.open_own(), choice))


def release(targets: Targets = None, state: States = "", name: Name = "") -> None:
    """Let held members start."""
    from slurm_colloc.cli import holding

    choice = choose(targets, state, name)
    raise typer.Exit(holding.release(Session.open_own(), choice))


def requeue(targets: Targets = None, state: States = "", name: Name = "") -> None:
    """Start running members again; a whole pack goes back into Slurm's queue."""
    from slurm_colloc.cli import requeueing

    choice = choose(targets, state, name)
    raise typer.Exit(requeueing.requeue(Session.open_own(), choice))


def wait(targets: Targets = None, state: States = "", name: Name = "") -> None:
    """Wait until members have ended; the exit status is the worst one's."""
    from slurm_colloc.cli.waiting import wait_for

    choice = choose(targets, state, name)
    raise typer.Exit(wait_for(Session.open(asks_often=True), choice))


def config(
    name: Annotated[str, typer.Argument(help="One setting.", show_default=False)] = "",
    value: Annotated[
        str | None, typer.Argument(help="Its new value, for your own file.", show_default=False)
    ] = None,
    unset: Annotated[
        str, typer.Option("--unset", metavar="NAME", help="Remove a setting from your own file.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the settings and where each comes from, or change your own."""
    from slurm_colloc.cli import configuring

    if unset:
        if name:
            raise UsageProblem("--unset stands alone", hint="csub config --unset NAME")
        configuring.unset(unset)
    elif value is not None:
        configuring.change(name, value)
    else:
        say(configuring.show(name, as_json=as_json))


def clean(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Over for at least so long.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Forget packs that are over: their files in the state directory, never your output."""
    from slurm_colloc.cli.cleaning import clean as run_clean

    session = Session.open() if dry_run else Session.open_own()
    say(run_clean(session, older_than, dry_run=dry_run))
    for text in dict.fromkeys(map(str, session.damaged)):
        note(f"left as it is: {text}")
