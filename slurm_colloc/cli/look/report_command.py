"""`csub report`: what members used, how fast they were, and what sharing gained or cost."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc.cli.arguments import Json, Name, States, User, Where, tell_problems
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.member import LAST
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.summary.pack_summary import Summary
from slurm_colloc.settings import load_settings
from slurm_colloc.store.all_packs import open_own_state

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import (
        MemberView,
        PackView,
    )
    from slurm_colloc.store.pack_reading import StateReader


def report(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="4711 for a submission, 4711/3 or 4711/2-5,8 for members, last for the newest "
            "submission, all for every member that is kept, also those that have ended.",
            metavar="[ID]...",
            show_default=False,
        ),
    ] = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    user: User = "",
    as_json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a line for each member, with commas.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", hidden=True, metavar="PACK", show_default=False)
    ] = None,
) -> None:
    """Show what members used, how fast they were, and what sharing gained; last by default."""
    if write is not None:
        raise typer.Exit(write_report(write))
    if as_json and as_csv:
        raise UsageProblem("--json and --csv exclude each other")
    choice = Choice.parse(targets or (), state, name, where, ended=True)
    if not choice.selections:
        choice = Choice.parse((LAST,), ended=True)
    session = Session.open(user=user)
    found = []
    for view, members in session.survey(choice, follow_all=False):
        with session.reading(view):
            found.append((_summarise(session.state, view), _choose_numbers(view, members)))
    if as_json:
        say(json.dumps([_narrow(summary, numbers) for summary, numbers in found]))
    elif as_csv:
        say(render_csv(found))
    else:
        from slurm_colloc.report.report_view import render_report
        from slurm_colloc.report.terminal_tables import choose_width

        width, styled = choose_width(), sys.stdout.isatty()
        parts = [
            render_report(summary, width, numbers, styled=styled) for summary, numbers in found
        ]
        say("\n".join(parts), styled=styled)
    tell_problems(session)


def _summarise(state: StateReader, view: PackView) -> dict[str, Any]:
    """A pack's summary: the one that its end has left, else one made now."""
    from slurm_colloc.report.summary.pack_summary import build_summary, read_summary

    path = state.pack_path(view.record.pack_id)
    left = read_summary(path) if all(member.is_final for member in view.members) else None
    return build_summary(path, state.root, view) if left is None else left


def _choose_numbers(view: PackView, members: list[MemberView]) -> frozenset[int] | None:
    """The members to show; None for all of a pack."""
    if len(members) == len(view.members):
        return None
    return frozenset(member.member.number for member in members)


def _narrow(summary: dict[str, Any], numbers: frozenset[int] | None) -> dict[str, Any]:
    members = [m for m in summary["members"] if numbers is None or m["member"] in numbers]
    return {**summary, "members": members}


def write_report(pack: Path) -> int:
    """Write a pack's summary.json and its usage profiles; called on the node as the pack ends.

    Returns:
        0; 1 or another exit status where something was not written, with a line that says why.
    """
    from slurm_colloc.learning.learn_from_pack import learn_from_pack

    calibrations = None
    # Wrong settings are told by every command that reads; here they cost no summary.
    with contextlib.suppress(CollocError):
        calibrations = load_settings().calibration_path
    try:
        # A directory that was given as `.` has its state directory above it all the same.
        path = pack.absolute()
        open_own_state(path.parent.parent)
        problems = learn_from_pack(path, calibrations)
    except CollocError as problem:
        note(f"error: the summary of {pack} was not written: {problem}")
        return problem.exit_code
    for text in problems:
        note(f"error: {text}")
    return 1 if problems else 0


_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("member", ("id",)),
    ("name", ("name",)),
    ("state", ("state",)),
    ("started_at", ("started_at",)),
    ("ended_at", ("ended_at",)),
    ("starts", ("starts",)),
    ("steps", ("steps",)),
    ("skipped", ("skipped",)),
    ("samples", ("samples",)),
    ("progress", ("progress",)),
    ("steps_per_s", ("rate", "steps_per_s")),
    ("samples_per_s", ("rate", "samples_per_s")),
    ("rate_window_s", ("rate", "window_s")),
    ("rate_spread", ("rate", "spread")),
    ("solo_steps_per_s", ("solo", "steps_per_s")),
    ("solo_source", ("solo", "source")),
    ("slowdown", ("slowdown",)),
    ("gpu_memory_peak_mb", ("gpu_memory_mb", "peak")),
    ("gpu_memory_attribution", ("gpu_memory_mb", "attribution")),
    ("sm_share", ("sm_share", "value")),
    ("sm_share_attribution", ("sm_share", "attribution")),
    ("energy_j", ("energy_j", "value")),
    ("energy_attribution", ("energy_j", "attribution")),
    ("cpu_s", ("cpu_s",)),
    ("cpu_cores", ("cpu_cores",)),
    ("host_memory_peak_mb", ("host_memory_peak_mb",)),
    ("read_bytes", ("read_bytes",)),
    ("written_bytes", ("written_bytes",)),
    ("data_wait_share", ("stall", "data")),
    ("host_share", ("stall", "host")),
    ("device_share", ("stall", "device")),
    ("predicted_slowdown", ("predicted_slowdown",)),
    ("together_slowdown", ("together_slowdown",)),
    ("gpu_memory_by", ("gpu_memory_mb", "by")),
    ("retry_of", ("retry_of",)),
)
# What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@")


def render_csv(found: Iterable[tuple[Summary, Collection[int] | None]]) -> str:
    """Members as CSV with a head; what is unknown is empty.

    Args:
        found: Summaries, and the numbers of the members of each to show; None for all.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    members = [
        member
        for summary, chosen in found
        for member in summary["members"]
        if chosen is None or member["member"] in chosen
    ]
    names = list(dict.fromkeys(name for m in members for name in m.get("parameters", {})))
    parameters = [(f"param.{escape_controls(name)}", ("parameters", name)) for name in names]
    fields = [*_FIELDS, *parameters]
    writer.writerow([name for name, _ in fields])
    for member in members:
        writer.writerow([_read(member, path) for _, path in fields])
    return file.getvalue()


def _read(member: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = member
    for key in path:
        if value is None:
            return ""
        # A summary of an older csub lacks what has come since.
        value = value.get(key)
    if isinstance(value, str):
        text = escape_controls(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value
