"""Arguments that several of csub's subcommands take, and what those that read end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.store.all_packs import State

_TOLD_MOST = 5

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
    str, typer.Option("--name", "-n", metavar="GLOB", help="Only members with this job name.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=VALUE",
        help="Only members with such a parameter; several of one name mean any of them.",
        show_default=False,
    ),
]
User = Annotated[
    str,
    typer.Option(
        "--user",
        "-u",
        metavar="NAME",
        help="Packs of this user, whose state directory is only read.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value (docs/json.md).")]

Format = Annotated[
    str,
    typer.Option(
        "--format",
        "-o",
        metavar="FORMAT",
        help="As squeue's (%.18i %.8j %T) or sacct's (JobID,State%12,Arguments).",
    ),
]
NoHeader = Annotated[bool, typer.Option("--noheader", "--no-header", help="Print no header line.")]
Each = Annotated[
    bool,
    typer.Option("--array", "-r", help="One line for each member, even if they are alike."),
]


def choose(
    targets: list[str] | None, state: str, name: str, where: Sequence[str] | None = None
) -> Choice:
    """What a command that needs to be told is to act on.

    Raises:
        UsageProblem: Nothing was named, or it cannot be read.
    """
    choice = Choice.parse(targets or (), state, name, where)
    if not choice.selections:
        raise UsageProblem(
            "name members to act on",
            hint="an id as in csub queue, last, all, --state, --name or --where",
        )
    return choice


def tell_problems(session: Session) -> None:
    """Say what could not be asked or read; the exit status says so, too."""
    problems: list[CollocError] = []
    if session.unreachable is not None:
        note(f"error: states are as the packs last wrote them: {session.unreachable}")
        problems.append(session.unreachable)
    for text in describe_damaged(session):
        note(f"error: {text}")
    if problems := [*problems, *session.damaged]:
        raise typer.Exit(problems[0].exit_code)


def tell_unreadable(session: Session) -> None:
    """The same for a command that is about named packs: of its own user's the others do not count.

    Those who help another user have to know what is left out.
    """
    if not isinstance(session.state, State):
        tell_problems(session)


def describe_damaged(session: Session) -> list[str]:
    """What is wrong with packs that cannot be read: a line each, of another user all in one."""
    texts = list(dict.fromkeys(map(str, session.damaged)))
    if isinstance(session.state, State) or not texts:
        return texts
    told = "; ".join(texts[:_TOLD_MOST])
    more = f"; and {len(texts) - _TOLD_MOST} more" if len(texts) > _TOLD_MOST else ""
    packs = "1 pack" if len(texts) == 1 else f"{len(texts)} packs"
    return [f"{packs} of {session.state.owner_name} cannot be read: {told}{more}"]
