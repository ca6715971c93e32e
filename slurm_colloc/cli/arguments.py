"""Arguments that several of csub's subcommands take, and what those that read end with."""

from __future__ import annotations

from typing import Annotated

import typer

from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.selection import Choice

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help="4711 for a submission, 4711/3 or 4711/2-5,8 for members, last for the newest "
        "submission, all for every member that has not ended.",
        metavar="[ID]...",
        show_default=False,
    ),
]
States = Annotated[
    str, typer.Option("--state", "-t", metavar="STATES", help="Only members in these states.")
]
Name = Annotated[
    str, typer.Option("--name", "-n", metavar="GLOB", help="Only members with such a job name.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value (docs/json.md).")]


def choose(targets: list[str] | None, state: str, name: str) -> Choice:
    """What a command that needs to be told is to act on.

    Raises:
        UsageProblem: Nothing was named, or it cannot be read.
    """
    choice = Choice.parse(targets or (), state, name)
    if not choice.selections:
        raise UsageProblem(
            "name members to act on", hint="an id as in csub queue, last, all, --state or --name"
        )
    return choice


def tell_problems(session: Session) -> None:
    """Say what could not be asked or read; the exit status says so, too."""
    if session.unreachable is not None:
        note(f"error: states are as the packs last wrote them: {session.unreachable}")
        raise typer.Exit(session.unreachable.exit_code)
    for text in dict.fromkeys(map(str, session.damaged)):
        note(f"error: {text}")
    if session.damaged:
        raise typer.Exit(session.damaged[0].exit_code)
