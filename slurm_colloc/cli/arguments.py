"""Arguments and options that several of csub's subcommands take, as typer reads them.

A command line without options is answered without typer, so the modules of the commands import this
for their annotations alone; `subcommands.build_app` brings it to them where typer reads these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

__all__ = [
    "Annotated", "Each", "Format", "Json", "Name", "NoHeader", "Path", "States", "Targets", "User",
    "Where", "typer",
]  # fmt: skip
