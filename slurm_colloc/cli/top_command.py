"""`csub top`: the running packs, live, from what their monitors write each second.

Also: a screen of a terminal that is drawn again and again, scrolled by keys and left with `q`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.presence import Attribution
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import ALL, MemberState
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.queue_rows import list_argument_words
from slurm_colloc.report.report_sentences import say_attribution
from slurm_colloc.report.show_view import (
    SHORT_UUID,
    find_gpu,
    format_traffic,
    name_gpu,
    tell_gpu_set,
)
from slurm_colloc.report.speed_words import STALE_S, TimesToEnd
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    choose_width,
    count_states,
    format_figure,
    format_mb_figure,
    format_share,
    format_span,
    format_to_end,
    is_styled,
    render,
)
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, describe_damaged, note, say
from slurm_colloc.store.all_packs import State, StateReader
from slurm_colloc.store.member_states import PARKED

if TYPE_CHECKING:
    from slurm_colloc.cli.arguments import Annotated, Name, States, Targets, User, Where, typer

PERIOD_S = 1.0
_NVLINK_SHOWN_MIB_S = 1.0
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
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
) -> None:
    """Show live what running members do; q ends it, arrows scroll."""
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
        view.record.pack_id: frozenset(member.place for member in members)
        for view, members in session.survey(choice, follow_all=False)
        if any(member.state is MemberState.RUNNING for member in view.members) and members
    }


def _render(session: Session, chosen: Mapping[str, frozenset[int]], *, styled: bool = False) -> str:
    """What is known of some packs now; empty where there are none."""
    from slurm_colloc.report.member_survey import survey_packs

    found = []
    for view in survey_packs(session.state, chosen, None, session.damaged):
        value, problem = _read_latest(session.state, view.record.pack_id)
        found.append(LatestReading(view, value, problem))
    if not found:
        return ""
    now, times = time.time(), TimesToEnd(session.state)
    to_end = {
        latest.view.record.pack_id: times.estimate(
            latest.view, latest.view.members, now, latest.value or {}
        )
        for latest in found
    }
    return render_top(found, now, choose_width(), chosen, to_end, styled=styled)


def _read_latest(state: StateReader, pack_id: str) -> tuple[Mapping[str, object] | None, str]:
    from slurm_colloc.store.atomic_files import read_json
    from slurm_colloc.store.report_files import latest_path

    try:
        return read_json(latest_path(state.pack_path(pack_id))), ""
    except StateError as problem:
        return None, str(problem)


def _follow(session: Session, choice: Choice) -> None:
    styled = is_styled(sys.stdout)
    with LiveScreen() as screen:
        chosen: Mapping[str, frozenset[int]] = {}
        for period in range(sys.maxsize):
            # Slurm is asked seldom; the monitors' files cost nothing.
            if period % _SURVEY_PERIODS == 0:
                chosen = _choose(session, choice)
            text = _render(session, chosen, styled=styled) or _tell_nothing(session)
            if screen.show(text, PERIOD_S):
                return


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
    to_end: Mapping[str, Mapping[int, float]] | None = None,
    *,
    styled: bool = False,
) -> str:
    """A line about all, then the packs, each with its GPU and its members.

    Args:
        found: The packs.
        now: Seconds since the epoch.
        width: Columns of the terminal.
        chosen: By pack id the members to show; None for all.
        to_end: By pack id and member, the seconds that it still takes, where that is known.
        styled: Heads may be bold.
    """
    parts: list[Any] = [_describe_all(found, now, chosen)]
    for latest in found:
        parts.append("")
        parts.append(build_lines(_build_head(latest, now)))
        if latest.value is not None:
            pack_id = latest.view.record.pack_id
            numbers = None if chosen is None else chosen.get(pack_id)
            columns, rows = _build_rows(
                latest.view, latest.value, numbers, (to_end or {}).get(pack_id, {})
            )
            if rows:
                parts.append(build_table(columns, rows, width))
    return render(parts, width, styled=styled)


def _describe_all(
    found: Sequence[LatestReading], now: float, chosen: Mapping[str, frozenset[int]] | None
) -> Any:
    from rich.text import Text

    members = [
        member
        for latest in found
        for member in latest.view.members
        if chosen is None or member.place in chosen[latest.view.record.pack_id]
    ]
    packs = format_count(len(found), "pack")
    counts = count_states([member.state for member in members])
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    return Text(", ".join(filter(None, (f"csub top  {clock}  {packs}", counts))), style="bold")


def _build_head(latest: LatestReading, now: float) -> list[tuple[str, str]]:
    record = latest.view.record
    told = f"{record.name}{tell_gpu_set(record)}"
    lines = [(latest.view.pack_name, told)]
    value = latest.value
    if latest.problem:
        return [*lines, ("", latest.problem)]
    if value is None:
        return [*lines, ("", "its monitor has measured nothing yet")]
    age_s = now - _number(value.get("at"), 0.0)
    if age_s > STALE_S:
        lines.append(("", f"its monitor last reported {format_span(age_s)} ago"))
    gpus, indexes = value.get("gpus"), value.get("indexes")
    for uuid, columns in (gpus if isinstance(gpus, dict) else {}).items():
        told = _tell_gpu(str(uuid), columns if isinstance(columns, dict) else {})
        index = indexes.get(uuid) if isinstance(indexes, dict) else None
        name = name_gpu(str(uuid), index if isinstance(index, int) else None)
        where = find_gpu(latest.view, str(uuid))
        lines.append((f"{where} ({str(uuid)[:SHORT_UUID]})" if where else name, told))
    return lines


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _tell_gpu(uuid: str, columns: Mapping[str, Any]) -> str:
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
    sent = columns.get("nvlink_tx_mib_s")
    if isinstance(sent, int | float) and sent >= _NVLINK_SHOWN_MIB_S:
        parts.append(f"sends {format_traffic(float(sent))} over NVLink")
    if columns.get("power_w") is not None:
        parts.append(f"{columns['power_w']:.0f} W")
    if columns.get("temperature_c") is not None:
        parts.append(f"{columns['temperature_c']:.0f} °C")
    word = Attribution.EXACT if uuid.startswith("MIG-") else Attribution.WHOLE_GPU
    return f"{', '.join(parts)}; {say_attribution(word)}" if parts else UNKNOWN


def _build_rows(
    view: PackView,
    value: Mapping[str, Any],
    numbers: frozenset[int] | None,
    to_end: Mapping[int, float],
) -> tuple[list[Column], list[tuple[str, ...]]]:
    columns = [
        Column("MEMBER", is_number=False),
        Column("NAME", is_number=False, gives_way=True),
        Column("STEPS"),
        Column("STEPS/S"),
        Column("LAST\nSTEP"),
        Column(f"GPU_MEM\n{say_attribution(Attribution.PER_PROCESS)}"),
        Column("CPUS"),
        Column("HOST_MEM"),
        Column("DATA\nWAIT"),
    ]
    words = list_argument_words([(view, member) for member in view.members])
    extra = [
        (Column("TO_END"), [format_to_end(to_end.get(m.place)) for m in view.members]),
        (Column("ARGS", is_number=False, gives_way=True), words),
    ]
    extra = [(column, cells) for column, cells in extra if any(cells)]
    columns += [column for column, _ in extra]
    members = value.get("members")
    readings = members if isinstance(members, dict) else {}
    rows: list[tuple[str, ...]] = []
    for place, member in enumerate(view.members):
        reading = readings.get(str(member.place))
        if not isinstance(reading, dict):
            continue
        if numbers is not None and member.place not in numbers:
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
                *(cells[place] for _, cells in extra),
            )
        )
    return columns, rows


# ---- A screen of a terminal that is drawn again and again, scrolled by keys and left with `q` ----

_ENTER = "\x1b[?1049h\x1b[?25l"
"""The alternate screen, without a cursor."""
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE, _CLEAR_REST = "\x1b[K", "\x1b[J"
_RESET = "\x1b[0m"

_QUIT = frozenset({b"q", b"Q", b"\x1b"})
_KEYS = {
    b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1,
    b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1, b"\r": 1, b"\n": 1,
}  # fmt: skip
_PAGE_KEYS = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1}
_TOP_KEYS = frozenset({b"g", b"\x1b[H", b"\x1b[1~"})
_END_KEYS = frozenset({b"G", b"\x1b[F", b"\x1b[4~"})


def scroll(offset: int, key: bytes, lines: int, height: int) -> int:
    """Where a page begins after a key.

    Args:
        offset: The line at which it begins now.
        key: What was pressed.
        lines: How many there are.
        height: How many fit.
    """
    if key in _TOP_KEYS:
        offset = 0
    elif key in _END_KEYS:
        offset = lines
    else:
        offset += _KEYS.get(key, 0) + _PAGE_KEYS.get(key, 0) * max(1, height - 1)
    return max(0, min(offset, lines - height))


class LiveScreen:
    """The terminal's other screen, for the time of a `with`.

    The old one comes back whatever ends it.

    Keys are read where standard input is a terminal.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._keyboard: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            self._keyboard = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        _write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)
        # A terminal that is gone needs none of it.
        with contextlib.suppress(OSError):
            _write(_RESET + _LEAVE)

    def show(self, text: str, seconds: float) -> bool:
        """Show a text for some time; its first line stays where the rest is scrolled.

        Args:
            text: The lines, harmless already.
            seconds: For how long.

        Returns:
            True where the user wants to leave.
        """
        until = time.monotonic() + seconds
        head, *body = text.splitlines() or [""]
        while True:
            height = self._draw(head, body)
            key = self._wait(until - time.monotonic())
            if key is None:
                return False
            if key in _QUIT:
                return True
            self._offset = scroll(self._offset, key, len(body), height)

    def _draw(self, head: str, body: list[str]) -> int:
        """Draw the page; how many lines of the body fit."""
        height = max(1, shutil.get_terminal_size().lines - 2)
        self._offset = max(0, min(self._offset, len(body) - height))
        page = body[self._offset : self._offset + height]
        hint = "q quits" if self._keyboard is not None else "Ctrl-C quits"
        if len(body) > height:
            last = self._offset + len(page)
            hint = f"{hint}, arrows and Page keys scroll: {self._offset + 1}-{last} of {len(body)}"
        lines = [head, *page, hint]
        shown = f"{_RESET}{_CLEAR_LINE}\r\n".join(lines)
        _write(f"{_HOME}{shown}{_RESET}{_CLEAR_LINE}{_CLEAR_REST}")
        return height

    def _wait(self, seconds: float) -> bytes | None:
        """The next key; None where none was pressed in time."""
        if self._keyboard is None:
            time.sleep(max(0.0, seconds))
            return None
        if not select.select([self._keyboard], [], [], max(0.0, seconds))[0]:
            return None
        # An arrow comes as several bytes in one piece. An end of input is no key.
        key = os.read(self._keyboard, 16)
        if not key:
            self._keyboard = None
            return None
        return key


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
