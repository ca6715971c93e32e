"""`csub top`: the running packs, live, from what their monitors write each second."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from slurm_colloc.cli.arguments import Name, States, Targets, User, describe_damaged
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import StateError
from slurm_colloc.model.member import ALL, MemberState
from slurm_colloc.model.selection import Choice
from slurm_colloc.store.pack_reading import StateReader
from slurm_colloc.store.packs import State

PERIOD_S = 1.0
_SURVEY_PERIODS = 10
_NOTHING = (
    "No pack of {whose} is running. csub queue shows what waits, csub report last what has ended."
)


def top(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    *,
    user: User = "",
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
) -> None:
    """Show live what running members do; Ctrl-C ends it."""
    choice = Choice.parse(targets or (ALL,), state, name)
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
    from slurm_colloc.report.survey import survey_packs
    from slurm_colloc.report.terminal import choose_width
    from slurm_colloc.report.top_view import Latest, render_top

    found = []
    for view in survey_packs(session.state, chosen, None, session.damaged):
        value, problem = _read_latest(session.state, view.record.pack_id)
        found.append(Latest(view, value, problem))
    return render_top(found, time.time(), choose_width(), chosen, styled=styled) if found else ""


def _read_latest(state: StateReader, pack_id: str) -> tuple[Mapping[str, object] | None, str]:
    from slurm_colloc.store.files import read_json
    from slurm_colloc.store.samples import latest_path

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
