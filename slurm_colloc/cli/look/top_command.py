"""`csub top`: the running packs, live, from what their monitors write each second."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from slurm_colloc.cli.arguments import Name, States, Targets, User, Where, describe_damaged
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import StateError
from slurm_colloc.model.member import ALL, MemberState
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.report.speed_words import STALE_S
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    format_figure,
    format_mb_figure,
    format_share,
    format_span,
    render,
)
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack.member_pauses import PARKED
from slurm_colloc.store.pack_reading import StateReader

PERIOD_S = 1.0
_SURVEY_PERIODS = 10
_NOTHING = (
    "No pack of {whose} is running. csub queue shows what waits, csub report last what has ended."
)


def top(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    user: User = "",
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
) -> None:
    """Show live what running members do; Ctrl-C ends it."""
    choice = Choice.parse(targets or (ALL,), state, name, where)
    session = Session.open(user=user, asks_often=not once)
    if once or not sys.stdout.isatty():
        say(_render(session, _choose(session, choice)) or _tell_nothing(session))
        for text in describe_damaged(session):
            note(f"error: {text}")
        return
    _follow(session, choice)


def _tell_nothing(session: Session) -> str:
    is_own = isinstance(session.state, State)
    return _NOTHING.format(whose="yours" if is_own else session.state.owner_name)


def _choose(session: Session, choice: Choice) -> Mapping[str, frozenset[int]]:
    """The running packs by id, each with the members that were named."""
    return {
        view.record.pack_id: frozenset(member.member.number for member in members)
        for view, members in session.survey(choice, follow_all=False)
        if any(member.state is MemberState.RUNNING for member in view.members) and members
    }


def _render(session: Session, chosen: Mapping[str, frozenset[int]], *, styled: bool = False) -> str:
    """What is known of some packs now; empty where there are none."""
    from slurm_colloc.report.member_survey import (
        survey_packs,
    )
    from slurm_colloc.report.terminal_tables import choose_width

    found = []
    for view in survey_packs(session.state, chosen, None, session.damaged):
        value, problem = _read_latest(session.state, view.record.pack_id)
        found.append(LatestReading(view, value, problem))
    return render_top(found, time.time(), choose_width(), chosen, styled=styled) if found else ""


def _read_latest(state: StateReader, pack_id: str) -> tuple[Mapping[str, object] | None, str]:
    from slurm_colloc.store.atomic_files import read_json
    from slurm_colloc.store.pack.sample_files import latest_path

    try:
        return read_json(latest_path(state.pack_path(pack_id))), ""
    except StateError as problem:
        return None, str(problem)


def _follow(session: Session, choice: Choice) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        chosen: Mapping[str, frozenset[int]] = {}
        for period in range(sys.maxsize):
            # Slurm is asked seldom; the monitors' files cost nothing.
            if period % _SURVEY_PERIODS == 0:
                chosen = _choose(session, choice)
            text = _render(session, chosen, styled=True) or _tell_nothing(session)
            live.update(Text.from_ansi(text), refresh=True)
            time.sleep(PERIOD_S)


@dataclass(frozen=True)
class LatestReading:
    """The newest reading of a pack.

    Attributes:
        view: The pack.
        value: Its latest.json; None where its monitor has written none yet.
        problem: Why it cannot be read; empty where it can.
    """

    view: PackView
    value: Mapping[str, Any] | None
    problem: str = ""


def render_top(
    found: Sequence[LatestReading],
    now: float,
    width: int,
    chosen: Mapping[str, frozenset[int]] | None = None,
    *,
    styled: bool = False,
) -> str:
    """All packs, each with its GPU and its members.

    Args:
        found: The packs.
        now: Seconds since the epoch.
        width: Columns of the terminal.
        chosen: By pack id the members to show; None for all.
        styled: Heads may be bold.
    """
    parts: list[Any] = []
    for latest in found:
        if parts:
            parts.append("")
        parts.append(build_lines(_build_head(latest, now)))
        if latest.value is not None:
            numbers = None if chosen is None else chosen.get(latest.view.record.pack_id)
            columns, rows = _build_rows(latest.view, latest.value, numbers)
            if rows:
                parts.append(build_table(columns, rows, width))
    return render(parts, width, styled=styled)


def _build_head(latest: LatestReading, now: float) -> list[tuple[str, str]]:
    lines = [(f"Pack {latest.view.job_id or '?'}", latest.view.record.name)]
    value = latest.value
    if latest.problem:
        return [*lines, ("", latest.problem)]
    if value is None:
        return [*lines, ("", "its monitor has measured nothing yet")]
    age_s = now - _number(value.get("at"), 0.0)
    if age_s > STALE_S:
        lines.append(("", f"its monitor was last heard of {format_span(age_s)} ago"))
    gpus = value.get("gpus")
    for uuid, columns in (gpus if isinstance(gpus, dict) else {}).items():
        lines.append((str(uuid)[:12], _tell_gpu(columns if isinstance(columns, dict) else {})))
    return lines


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _tell_gpu(columns: Mapping[str, Any]) -> str:
    parts = [
        f"{name} {format_share(columns[metric])}"
        for metric, name in (
            ("sm_active", "SM"), ("tensor_active", "tensor"), ("dram_active", "DRAM"),
            ("utilization", "utilization"),
        )
        if columns.get(metric) is not None
    ]  # fmt: skip
    if columns.get("gpu_memory_mb") is not None:
        parts.append(f"memory {format_mb_figure(columns['gpu_memory_mb'])}")
    if columns.get("power_w") is not None:
        parts.append(f"{columns['power_w']:.0f} W")
    if columns.get("temperature_c") is not None:
        parts.append(f"{columns['temperature_c']:.0f} °C")
    return f"{', '.join(parts)}; whole_gpu" if parts else UNKNOWN


def _build_rows(
    view: PackView, value: Mapping[str, Any], numbers: frozenset[int] | None
) -> tuple[list[Column], list[tuple[str, ...]]]:
    columns = [
        Column("MEMBER", is_number=False),
        Column("NAME", is_number=False, gives_way=True),
        Column("STEPS"),
        Column("STEPS/S"),
        Column("LAST\nSTEP"),
        Column("GPU_MEM\nper_process"),
        Column("CPUS"),
        Column("HOST_MEM"),
        Column("DATA\nWAIT"),
    ]
    members = value.get("members")
    readings = members if isinstance(members, dict) else {}
    rows: list[tuple[str, ...]] = []
    for member in view.members:
        reading = readings.get(str(member.member.number))
        if not isinstance(reading, dict):
            continue
        if numbers is not None and member.member.number not in numbers:
            continue
        steps = reading.get("steps")
        age_s = reading.get("last_step_age_s")
        rows.append(
            (
                str(member.member),
                member.name,
                UNKNOWN if steps is None else str(steps),
                PARKED if member.is_parked else format_figure(reading.get("steps_per_s")),
                UNKNOWN if age_s is None else format_span(age_s),
                format_mb_figure(reading.get("gpu_memory_mb")),
                format_figure(reading.get("cpu_cores"), 2),
                format_mb_figure(reading.get("host_memory_mb")),
                format_share(reading.get("wait_share")),
            )
        )
    return columns, rows
