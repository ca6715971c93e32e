"""csub's subcommands, declared for typer in the order of `csub --help`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slurm_colloc import __version__
from slurm_colloc.cli.command_groups import group_commands
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.extensions import COMMANDS, list_extensions
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.store.all_packs import State

# ---- Arguments that several of csub's subcommands take, and what those that read end with --------

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


# ---- `csub --help`: the commands by what one wants to do -----------------------------------------


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
    raise typer.Exit(enter(Session.open_own(), target, words[words[:1] == ["--"] :]))


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
    raise typer.Exit(cancel_and_requeue.cancel(Session.open_own(), choice, yes=yes))


def hold(targets: Targets = None, state: States = "", name: Name = "", where: Where = None) -> None:
    """Keep waiting members from starting."""
    from slurm_colloc.cli import hold_and_wait

    choice = choose(targets, state, name, where)
    raise typer.Exit(hold_and_wait.hold(Session.open_own(), choice))


def release(
    targets: Targets = None, state: States = "", name: Name = "", where: Where = None
) -> None:
    """Let held members start."""
    from slurm_colloc.cli import hold_and_wait

    choice = choose(targets, state, name, where)
    raise typer.Exit(hold_and_wait.release(Session.open_own(), choice))


def requeue(
    targets: Targets = None, state: States = "", name: Name = "", where: Where = None
) -> None:
    """Start running members again; a whole pack goes back into Slurm's queue."""
    from slurm_colloc.session import cancel_and_requeue

    choice = choose(targets, state, name, where)
    raise typer.Exit(cancel_and_requeue.requeue(Session.open_own(), choice))


def wait(targets: Targets = None, state: States = "", name: Name = "", where: Where = None) -> None:
    """Wait until members have ended; exit with the worst one's status, and name it."""
    from slurm_colloc.cli.hold_and_wait import wait_for

    choice = choose(targets, state, name, where)
    raise typer.Exit(wait_for(Session.open(asks_often=True), choice, tells=True))


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
        raise typer.Exit


def submit() -> None:
    """Submit a script, as sbatch does; the word may be left out."""


def pack() -> None:
    """Submit several scripts that share a GPU: csub pack [OPTIONS] a.sh 'b.sh --lr 0.1' ..."""


def sweep() -> None:
    """Submit a script once for each of many values: csub sweep SCRIPT --lr 0.1,0.2 --seed 0:5."""


def batch() -> None:
    """Submit the rows of a table as jobs: csub batch jobs.csv; also a list of commands."""


def retry() -> None:
    """Retry members that did not complete: csub retry ID [--failed] [OPTIONS]."""


def probe() -> None:
    """Run a script alone until its usage profile is known: csub probe [OPTIONS] SCRIPT."""


def plan() -> None:
    """Show which jobs would share, how and why; submit nothing: csub plan [OPTIONS] SCRIPT."""


def notebook() -> None:
    """Start a Jupyter server as a member; it ends when no longer used."""


def check() -> None:
    """Say what in a script would collide on a shared GPU: csub check [OPTIONS] SCRIPT."""


def calibrate() -> None:
    """Measure how trainings share this GPU, for csub's plans on GPUs of its model."""


def tutorial() -> None:
    """Try csub for five minutes on a private Slurm, which is removed at the end."""


def sandbox() -> None:
    """Run a private Slurm cluster on this machine: up, status, env, down."""


def admin() -> None:
    """For administrators: install, test, show and remove hooks on the nodes."""


_HELP = (
    "Share a GPU between jobs inside one ordinary Slurm allocation.\n\n"
    "csub [SBATCH OPTIONS] SCRIPT [ARGUMENTS] submits as sbatch does; csub submit --help "
    "lists the options.\n\n"
    "csub --install-completion makes your shell complete commands, options and ids; csub --man "
    "prints the manual page."
)
_FOR_HELP = (
    submit, pack, sweep, batch, retry, probe, plan, notebook, check, admin,
)  # fmt: skip
"""Commands that read their own words: typer only lists them."""
_OF_LAB = (calibrate, tutorial, sandbox)
"""The same of another package's, listed where that is installed."""
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
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for command in _list_for_help() if not only else ():
        app.command(context_settings=_RAW)(command)
    for name, module in _ELSEWHERE.items():
        if only in ("", name):
            declared = getattr(import_module(f"slurm_colloc.cli.{module}"), name)
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


def _list_for_help() -> tuple[Callable[[], None], ...]:
    installed = list_extensions(COMMANDS)
    return (*_FOR_HELP, *(command for command in _OF_LAB if command.__name__ in installed))
