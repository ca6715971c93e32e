"""Packs as tidy pandas frames, for notebooks: `from slurm_colloc.report import load_packs`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import CollocError, NotFound, StateError, UsageProblem
from slurm_colloc.model.job import read_parameters
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import ALL, LAST, Selection
from slurm_colloc.model.quantities import parse_age_s
from slurm_colloc.report.data_tables import (
    MEMBER_COLUMNS,
    PACK_COLUMNS,
    ColumnKind,
    DataColumn,
    build_member_rows,
    build_pack_rows,
)
from slurm_colloc.report.ended_members import list_changed_since
from slurm_colloc.report.member_survey import find_last, survey_packs
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.pack_samples import read_columns
from slurm_colloc.report.report_view import list_metric_names, read_metric
from slurm_colloc.report.summary_file import Summary, choose_members, find_summary
from slurm_colloc.settings import load_settings
from slurm_colloc.store.all_packs import StateReader, open_state
from slurm_colloc.store.report_files import GPU_COLUMNS
from slurm_colloc.store.report_files import MEMBER_COLUMNS as SAMPLE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

PARAMETER = "param_"
"""How columns begin that are made of a member's arguments."""
METRIC = "metric_"
"""How columns begin that are members' results."""


@dataclass(frozen=True)
class PackFrames:
    """Packs as frames; a row is a pack, a member, or a reading.

    Attributes:
        packs: A row for each pack; times are in UTC, what is unknown is missing.
        members: A row for each member; `param_lr` has what `--lr` or `lr=` says in its arguments,
            `metric_loss` the result of that name.
        problems: What could not be read, a sentence each.
    """

    packs: pd.DataFrame
    members: pd.DataFrame
    problems: list[str]
    _paths: Mapping[str, Path]
    _chosen: Mapping[str, frozenset[int] | None]

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The monitor's readings of members, a row for each second; read when asked for.

        `seconds` counts from the pack's first reading. Counters such as `steps` are those of the
        member's start.
        """
        return self._read("members", SAMPLE_COLUMNS)

    @cached_property
    def gpu_samples(self) -> pd.DataFrame:
        """The monitor's readings of the packs' GPUs, a row for each second."""
        return self._read("gpu", GPU_COLUMNS)

    def _read(self, table: str, columns: Sequence[tuple[str, str]]) -> pd.DataFrame:
        import pandas as pd

        names = [name for name, _ in columns]
        frames = []
        for pack_id, path in self._paths.items():
            problems: list[str] = []
            rows = read_columns(path, table, names, problems)
            self._tell(problems)
            if rows is None:
                continue
            frame = rows.to_pandas().sort_values("at", ignore_index=True)
            if table == "members" and (numbers := self._chosen.get(pack_id)) is not None:
                frame = frame[frame["member"].isin(numbers)].reset_index(drop=True)
            frame.insert(0, "pack_id", pack_id)
            first = float(frame["at"].min()) if len(frame) else 0.0
            frame.insert(1, "seconds", frame["at"] - first)
            frame["at"] = pd.to_datetime(frame["at"], unit="s", utc=True)
            frames.append(frame)
        if not frames:
            return pd.DataFrame(columns=["pack_id", "seconds", *names])
        return pd.concat(frames, ignore_index=True)

    def _tell(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self.problems:
                self.problems.append(problem)
                warnings.warn(problem, stacklevel=4)


def load_packs(
    *ids: str, since: str | None = None, state_dir: str | os.PathLike[str] | None = None
) -> PackFrames:
    """Packs as pandas frames, read from the state directory alone: Slurm is not asked.

    Args:
        ids: `4711`, `4711/2-5`, `last`; none for all packs that are kept.
        since: Only packs in which a member can have ended within this time, `7d`, `12h`; packs
            that are not over are among them.
        state_dir: Another state directory; None for that of your settings.

    Raises:
        NotFound: There is no such pack, or no packs at all.
        StateError: pandas is not installed, or the state directory cannot be read.
        UsageProblem: An id or `since` cannot be read, or the settings are wrong.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise StateError(
            f"load_packs needs pandas ({error})",
            hint="install it alongside csub: pip install 'slurm_colloc[report]'",
        ) from error
    root = Path(state_dir) if state_dir is not None else load_settings().state_path
    state = open_state(root)
    damaged: list[StateError] = []
    views = _find(state, ids, since, damaged)
    problems = [str(problem) for problem in damaged]
    found: list[tuple[Summary, frozenset[int] | None]] = []
    for view, numbers in views:
        try:
            found.append((find_summary(state, view), numbers))
        except CollocError as problem:
            problems.append(str(problem))
    problems += [
        f"pack {summary['job'] or summary['pack_id']}: {text}"
        for summary, _ in found
        for text in summary["problems"]
    ]
    for text in problems:
        warnings.warn(text, stacklevel=2)
    rows = build_member_rows(found)
    own = [member for one in found for member in choose_members(*one)]
    members = _build_frame(pd, rows, MEMBER_COLUMNS)
    extra = [read_parameters(member["arguments"] or ()) for member in own]
    names = list(dict.fromkeys(name for values in extra for name in values))
    if names:
        columns = {f"{PARAMETER}{name}": [values.get(name) for values in extra] for name in names}
        more = pd.DataFrame(columns, index=members.index).apply(_to_numbers)
        members = pd.concat([members, more], axis=1)
    if metrics := list_metric_names(own):
        results = {f"{METRIC}{name}": [read_metric(one, name) for one in own] for name in metrics}
        more = pd.DataFrame(results, index=members.index, dtype="float64")
        members = pd.concat([members, more], axis=1)
    return PackFrames(
        packs=_build_frame(pd, build_pack_rows(summary for summary, _ in found), PACK_COLUMNS),
        members=members,
        problems=problems,
        _paths={summary["pack_id"]: state.pack_path(summary["pack_id"]) for summary, _ in found},
        _chosen={summary["pack_id"]: numbers for summary, numbers in found},
    )


def _find(
    state: StateReader, ids: Sequence[str], since: str | None, damaged: list[StateError]
) -> list[tuple[PackView, frozenset[int] | None]]:
    """The packs that are meant, and the numbers of the members of each; None for all."""
    known = state.list_all()
    if since is not None:
        try:
            oldest = time.time() - parse_age_s(since)
        except ValueError as error:
            raise UsageProblem(f"since: {error}") from error
        known = list_changed_since(state, oldest)
    if not ids or ALL in ids:
        if not known and since is None:
            raise NotFound(f"there are no packs in {state.root}")
        return [(view, None) for view in survey_packs(state, known, None, damaged)]
    chosen: dict[str, tuple[PackView, set[int] | None]] = {}
    for text in ids:
        selection = state.resolve(find_last(state) if text == LAST else Selection.parse(text))
        pack_ids = [pack_id for pack_id in state.find_packs(selection.job) if pack_id in set(known)]
        for view in survey_packs(state, pack_ids, None, damaged):
            numbers = {
                member.place
                for member in view.members
                if member.member.job == selection.job and selection.means(member.member)
            }
            is_shared = any(member.member.joined_as for member in view.members)
            _, before = chosen.get(view.record.pack_id, (view, set()))
            is_whole = before is None or (selection.ranges is None and not is_shared)
            numbers |= before or set()
            if is_whole or numbers:
                chosen[view.record.pack_id] = (view, None if is_whole else numbers)
    return [
        (view, None if numbers is None else frozenset(numbers)) for view, numbers in chosen.values()
    ]


def _to_numbers(column: pd.Series) -> pd.Series:
    """A column of numbers where all that are there are such, else of texts."""
    import pandas as pd

    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column


_KINDS = {
    ColumnKind.TEXT: "string",
    ColumnKind.WORDS: "string",
    ColumnKind.WHOLE: "Int64",
    ColumnKind.NUMBER: "float64",
    ColumnKind.FLAG: "boolean",
}


def _build_frame(
    pd: Any, rows: Sequence[Mapping[str, Any]], columns: Sequence[DataColumn]
) -> pd.DataFrame:
    """A frame whose columns have their kinds even where nothing is known."""
    data = {}
    for column in columns:
        values = [row[column.name] for row in rows]
        if column.kind is ColumnKind.TIME:
            numbers = pd.Series(values, dtype="float64")
            data[column.name] = pd.to_datetime(numbers, unit="s", utc=True, errors="coerce")
        else:
            data[column.name] = pd.Series(values, dtype=_KINDS[column.kind])
    return pd.DataFrame(data)
