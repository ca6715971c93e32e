"""csub's subcommands, declared for typer in the order of `csub --help`."""

from __future__ import annotations

from typing import Annotated

import typer

from slurm_colloc import __version__
from slurm_colloc.cli import acting, looking
from slurm_colloc.cli.calibrating import calibrate
from slurm_colloc.cli.doctor import doctor
from slurm_colloc.cli.profiling import profile
from slurm_colloc.cli.reporting import report
from slurm_colloc.cli.session import say
from slurm_colloc.cli.topping import top

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


@app.command(context_settings=_RAW)
def probe() -> None:
    """Run a script alone only until its usage profile is known: csub probe [OPTIONS] SCRIPT."""


@app.command(context_settings=_RAW)
def plan() -> None:
    """Show which jobs would share, how and why; submit nothing: csub plan [OPTIONS] SCRIPT."""


@app.command(context_settings=_RAW)
def check() -> None:
    """Say what in a script would collide when it shares a GPU: csub check [OPTIONS] SCRIPT."""


app.command()(looking.queue)
app.command()(looking.history)
app.command()(looking.show)
app.command()(looking.why)
app.command()(looking.explain)
app.command()(looking.logs)
app.command()(report)
app.command()(top)
app.add_typer(profile)
app.command(context_settings={"allow_interspersed_args": False})(acting.shell)
app.command()(acting.cancel)
app.command()(acting.hold)
app.command()(acting.release)
app.command()(acting.requeue)
app.command()(acting.wait)
app.command()(acting.config)
app.command()(acting.clean)
app.command()(doctor)
app.command()(calibrate)


@app.command(context_settings=_RAW)
def sandbox() -> None:
    """Run a private Slurm cluster on this machine: up, status, env, down."""


@app.command(context_settings=_RAW)
def admin() -> None:
    """For administrators: hooks on the nodes, put in place, tried, shown, removed."""
