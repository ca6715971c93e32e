"""csub's subcommands, declared for typer; the work is done elsewhere."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from slurm_colloc import __version__
from slurm_colloc.cli.session import Session, note, say

app = typer.Typer(
    name="csub",
    help=(
        "Share a GPU between jobs inside one ordinary Slurm allocation.\n\n"
        "csub [SBATCH OPTIONS] SCRIPT [ARGUMENTS] submits as sbatch does; csub submit --help "
        "lists the options."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

Targets = Annotated[
    list[str], typer.Argument(help="4711 for a submission, 4711/3 for one member.", metavar="ID...")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value (docs/json.md).")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """Options before a subcommand."""
    if version:
        say(f"csub {__version__}")
        raise typer.Exit


@app.command(context_settings=_RAW)
def submit() -> None:
    """Submit a script, as sbatch does; the word may be left out."""


@app.command(context_settings=_RAW)
def pack() -> None:
    """Submit several scripts that share a GPU: csub pack [OPTIONS] a.sh 'b.sh --lr 0.1' ..."""


@app.command()
def queue(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Members that have ended, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the members that wait or run."""
    from slurm_colloc.report import queue as rows
    from slurm_colloc.report.survey import survey_packs

    session = Session.open()
    if everything:
        pack_ids = session.state.list_all()
        views = survey_packs(session.state, pack_ids, session.refresh(), session.damaged)
    else:
        views = session.survey_open()
    now = time.time()
    if as_json:
        say(json.dumps(rows.build_json(views, now, finished=everything)))
    else:
        say(rows.render_table(rows.HEADER, rows.build_rows(views, now, finished=everything)))
    if session.unreachable is not None:
        note(f"error: states are as the packs last wrote them: {session.unreachable}")
        raise typer.Exit(session.unreachable.exit_code)
    for text in dict.fromkeys(map(str, session.damaged)):
        note(f"error: {text}")
    if session.damaged:
        raise typer.Exit(session.damaged[0].exit_code)


@app.command()
def show(targets: Targets, as_json: Json = False) -> None:
    """Show everything about a submission or a member."""
    from slurm_colloc.model.member import Selection
    from slurm_colloc.report.queue import build_member_json
    from slurm_colloc.report.show import render_member, render_pack

    session = Session.open()
    selections = [Selection.parse(text) for text in targets]
    now = time.time()
    single = {selection.job for selection in selections if selection.number is not None}
    found = session.survey(selections)
    if as_json:
        say(json.dumps([build_member_json(v, m, now) for v, members in found for m in members]))
        return
    for view, members in found:
        if view.shown_id in single:
            for member in members:
                say(render_member(view, member, session.state, now))
        else:
            say(render_pack(view, session.state, now))


@app.command()
def logs(
    targets: Targets,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the members have ended.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", help="The file of --error instead.")] = False,
) -> None:
    """Print the output of members."""
    from slurm_colloc.cli.following import print_logs
    from slurm_colloc.model.member import Selection

    selections = [Selection.parse(text) for text in targets]
    raise typer.Exit(print_logs(Session.open(), selections, follow=follow, error=error))


@app.command()
def cancel(targets: Targets) -> None:
    """End members: SIGTERM, and SIGKILL after Slurm's KillWait."""
    from slurm_colloc.cli import cancelling
    from slurm_colloc.model.member import Selection

    selections = [Selection.parse(text) for text in targets]
    raise typer.Exit(cancelling.cancel(Session.open(), selections))


@app.command()
def wait(targets: Targets) -> None:
    """Wait until members have ended; the exit status is the worst one's."""
    from slurm_colloc.cli.waiting import wait_for
    from slurm_colloc.model.member import Selection

    selections = [Selection.parse(text) for text in targets]
    raise typer.Exit(wait_for(Session.open(), selections))


@app.command(context_settings=_RAW)
def sandbox() -> None:
    """Run a private Slurm cluster on this machine: up, status, env, down."""
