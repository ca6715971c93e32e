"""`csub track`: members into MLflow or W&B."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from slurm_colloc.cli.arguments import tell_unreadable
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.member import LAST

_PROJECT = "csub"


def track(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="4711, 4711/2-5, last (the default).", metavar="[ID]...",
                       show_default=False),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="TRACKER", help="mlflow or wandb.")] = "",
    uri: Annotated[
        str,
        typer.Option("--uri", metavar="URI", help="For MLflow; by default MLFLOW_TRACKING_URI."),
    ] = "",
    project: Annotated[
        str,
        typer.Option("--project", metavar="NAME",
                     help="Experiment or project for members without a run of their own."),
    ] = _PROJECT,
    offline: Annotated[
        bool, typer.Option("--offline", help="W&B: write files for `wandb sync`.")
    ] = False,
) -> None:  # fmt: skip
    """Give members' figures to MLflow or W&B: into the runs that they have opened, or new ones."""
    if not to:
        raise UsageProblem("no tracker was named", hint="csub track ID --to mlflow, or --to wandb")
    if to not in ("mlflow", "wandb"):
        raise UsageProblem(f"--to: {to!r} is not a tracker", hint="valid ones are mlflow and wandb")
    if (uri and to != "mlflow") or (offline and to != "wandb"):
        raise UsageProblem("--uri is MLflow's, and --offline is W&B's")
    from slurm_colloc.report.summary.stored_summary import find_summary
    from slurm_colloc.report.trackers.mlflow_runs import MlflowTracker
    from slurm_colloc.report.trackers.track_members import MemberRefused, Tracker, track_pack
    from slurm_colloc.report.trackers.wandb_runs import WandbTracker

    tracker: Tracker
    if to == "mlflow":
        tracker = MlflowTracker(uri, project)
    else:
        tracker = WandbTracker(project, "offline" if offline else "", os.getcwd())  # noqa: PTH109
    session = Session.open()
    choice = Choice.parse(targets or (LAST,), ended=True)
    failed: CollocError | None = None
    for view, members in session.survey(choice, follow_all=False):
        whole = len(members) == len(view.members)
        numbers = None if whole else frozenset(m.place for m in members)
        with session.reading(view):
            summary = find_summary(session.state, view)
            path = session.state.pack_path(view.record.pack_id)
            try:
                for name, done in track_pack(tracker, to, path, summary, numbers):
                    if isinstance(done, MemberRefused):
                        note(f"error: {done}")
                        failed = done
                    else:
                        say(f"{name} {done}")
            except CollocError as problem:
                # A server that refuses one may take the next pack's.
                note(f"error: {problem}")
                failed = problem
    tell_unreadable(session)
    if failed is not None:
        raise typer.Exit(failed.exit_code)
