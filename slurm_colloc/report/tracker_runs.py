"""Giving the members of packs to a tracker, one after the other.

Also: what a tracker is given of a member: parameters, figures, series and how it ended; members
into MLflow: into the run that a member has opened, else into one of its own; members into W&B: into
the run that a member has opened, else into one of its own.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.model.job import read_parameters
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.records import is_number
from slurm_colloc.report.data_tables import MEMBER_COLUMNS
from slurm_colloc.report.pack_samples import read_columns
from slurm_colloc.report.summary_file import Summary, SummaryMember, choose_members, read_path
from slurm_colloc.store.report_files import (
    GPU_COLUMNS,
    TrackerRun,
    read_tracker_runs,
)
from slurm_colloc.store.report_files import MEMBER_COLUMNS as SAMPLE_COLUMNS

if TYPE_CHECKING:
    import wandb
    from mlflow.tracking import MlflowClient


# ---- What a tracker is given of a member: parameters, figures, series and how it ended; pure -----
#
# What is not known is left out; it is never 0.

PREFIX = "system/csub/"
"""How names of figures begin."""
POINTS_MOST = 1000
"""Of a series; a longer one is thinned."""
_VALUE_MOST = 500
_PARAMETERS_MOST = 100
_WRAP = "--wrap"
"""What a job has for its script that is a command."""

_FIGURES = frozenset(
    {"steps", "steps_per_s", "samples_per_s", "solo_steps_per_s", "slowdown", "gpu_memory_peak_mb",
     "sm_share", "energy_j", "cpu_s", "cpu_cores", "host_memory_peak_mb", "data_wait_share",
     "stopped_s"}
)  # fmt: skip
"""Those columns of the table of members."""
_OF_MEMBER = ("gpu_memory_mb", "host_memory_mb", "processes")
_OF_GPU = ("sm_active", "utilization", "power_w", "gpu_memory_mb")


@dataclass(frozen=True)
class TrackerValues:
    """A member as trackers take it.

    Attributes:
        name: What its run is called, where it gets one: `4711/3`.
        parameters: Its parameters of a sweep or table, and what its arguments set.
        tags: Which member it is, and how it ended.
        figures: Figures over its whole run, by name.
        series: For each moment, what was measured: seconds since its start, and values by name.
        started_at: In seconds since the epoch.
        ended_at: None while it runs.
        state: Its state.
    """

    name: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    figures: Mapping[str, float]
    series: Sequence[tuple[float, Mapping[str, float]]]
    started_at: float
    ended_at: float | None
    state: str

    @property
    def is_failed(self) -> bool:
        """It ended, and neither well nor because somebody wanted it to."""
        well = (MemberState.COMPLETED, MemberState.CANCELLED, MemberState.PREEMPTED)
        return self.ended_at is not None and self.state not in map(str, well)

    @property
    def is_killed(self) -> bool:
        """It was ended from outside."""
        return self.state in (MemberState.CANCELLED, MemberState.PREEMPTED)


def build_values(
    summary: Summary,
    member: SummaryMember,
    readings: Sequence[Mapping[str, Any]],
    gpu: Sequence[Mapping[str, Any]],
) -> TrackerValues:
    """A member as trackers take it.

    Args:
        summary: Its pack's.
        member: Its part of that; it has started.
        readings: The monitor's of it, in order of time.
        gpu: The monitor's of the pack's GPU, in order of time.
    """
    arguments = [str(word) for word in member["arguments"] or ()]
    own = member["parameters"]
    # The argument of --wrap is a command.
    told = {} if member["script"] == _WRAP else read_parameters(arguments)
    known = {**own, **told, **own}
    parameters = {
        _clean(name): _clean(value) for name, value in list(known.items())[:_PARAMETERS_MOST]
    }
    tags = {
        "csub.member": member["id"],
        "csub.state": member["state"],
        "csub.script": _clean(member["script"] or ""),
        "csub.arguments": _clean(shlex.join(arguments)),
        "csub.node": _clean(member["node"] or ""),
        "csub.gpu_model": _clean(summary["gpu"]["model"] or ""),
        "csub.mode": _clean(member["mode"] or ""),
        "csub.cause": _clean(member["cause"] or ""),
        "csub.exit_code": "" if member["exit_code"] is None else str(member["exit_code"]),
    }
    begin = member["started_at"] or 0.0
    return TrackerValues(
        name=member["id"],
        parameters=parameters,
        tags={name: value for name, value in tags.items() if value},
        figures=dict(_list_figures(summary, member)),
        series=_build_series(begin, member["ended_at"], readings, gpu),
        started_at=begin,
        ended_at=member["ended_at"],
        state=member["state"],
    )


def _clean(text: str) -> str:
    return cut(escape_controls(text), _VALUE_MOST)


def _list_figures(summary: Summary, member: SummaryMember) -> Iterator[tuple[str, float]]:
    for column in MEMBER_COLUMNS:
        if column.name in _FIGURES and is_number(value := read_path(member, column.path)):
            yield f"{PREFIX}{column.name}", float(value)
    for name in ("gpu_hours_saved", "stp"):
        value = summary["pack"].get(name)
        if is_number(value):
            yield f"{PREFIX}pack/{name}", float(value)


def _build_series(
    begin: float,
    end: float | None,
    readings: Sequence[Mapping[str, Any]],
    gpu: Sequence[Mapping[str, Any]],
) -> list[tuple[float, dict[str, float]]]:
    """Values by moment: of the member, and of the whole GPU while it ran."""
    found: dict[float, dict[str, float]] = {}

    def add(at: float, name: str, value: Any) -> None:
        if is_number(value) and at >= begin and (end is None or at <= end + 1.0):
            found.setdefault(at, {})[f"{PREFIX}{name}"] = float(value)

    before: Mapping[str, Any] | None = None
    for row in _thin(readings):
        for name in _OF_MEMBER:
            add(row["at"], name, row.get(name))
        add(row["at"], "steps_per_s", _compute_rate(before, row))
        before = row
    for row in _thin(gpu):
        for name in _OF_GPU:
            add(row["at"], f"whole_gpu/{name}", row.get(name))
    return [(at - begin, found[at]) for at in sorted(found)]


def _compute_rate(before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> float | None:
    """Steps per second since the row before, of the same start."""
    if before is None or before.get("start") != row.get("start"):
        return None
    first, last = before.get("steps"), row.get("steps")
    elapsed_s = float(row["at"]) - float(before["at"])
    if first is None or last is None or elapsed_s <= 0 or last < first:
        return None
    return (float(last) - float(first)) / elapsed_s


def _thin(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    stride = max(1, math.ceil(len(rows) / POINTS_MOST))
    return rows[::stride]


# ---- Giving the members of packs to a tracker, one after the other -------------------------------

Rows = list[dict[str, Any]]


class MemberRefused(NodeError):
    """A tracker does not take one member; it may take others."""


class Tracker(Protocol):
    """Something that takes members."""

    def track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
        """Take one; what was done, for people.

        Raises:
            MemberRefused: It does not take this one.
            CollocError: It takes none now.
        """


def track_pack(
    tracker: Tracker, kind: str, pack: Path, summary: Summary, numbers: frozenset[int] | None
) -> Iterator[tuple[str, str | MemberRefused]]:
    """Give the members of a pack that have run to a tracker; those that still run only are named.

    Args:
        tracker: It.
        kind: `mlflow` or `wandb`: of these, members' own runs are looked for.
        pack: The pack's directory.
        summary: Its summary, complete.
        numbers: The members that are meant; None for all.

    Yields:
        A member's id, and what was done, or why the tracker does not take it.

    Raises:
        CollocError: The tracker takes none now.
    """
    own: dict[int, TrackerRun] = {}
    for run in read_tracker_runs(pack):
        # Of several the last: one that was started again has opened another.
        if run.tracker == kind:
            own[run.member] = run
    problems: list[str] = []
    members = _read(pack, "members", SAMPLE_COLUMNS, problems)
    gpu = [
        row
        for row in _read(pack, "gpu", GPU_COLUMNS, problems)
        if row["uuid"] == summary["gpu"]["uuid"]
    ]
    by_number: dict[int, Rows] = {}
    for row in members:
        by_number.setdefault(row["member"], []).append(row)
    stamp = (
        f"{summary['pack_id']}.{summary['attempt']}.{'final' if summary['final'] else 'running'}"
    )
    for member in choose_members(summary, numbers):
        if member["started_at"] is None:
            continue
        if member["ended_at"] is None:
            # Its own run is being written.
            yield member["id"], "still runs: call it again when it has ended"
            continue
        values = build_values(summary, member, by_number.get(member["member"], []), gpu)
        try:
            done: str | MemberRefused = tracker.track(values, own.get(member["member"]), stamp)
        except MemberRefused as problem:
            done = problem
        yield values.name, done


def _read(
    pack: Path, table: str, columns: tuple[tuple[str, str], ...], problems: list[str]
) -> Rows:
    rows = read_columns(pack, table, [name for name, _ in columns], problems)
    if rows is None:
        return []
    found: Rows = rows.sort_by("at").to_pylist()
    return found


# ---- Members into MLflow: into the run that a member has opened, else into one of its own --------

_BATCH = 900
"""MLflow takes 1,000 values a call at most."""
_DONE = "csub.tracked"
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""A person waits: by itself MLflow tries a server that is gone for more than four minutes."""
_OF_THIS_RUN = frozenset(
    {
        "INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST",
        "RESOURCE_ALREADY_EXISTS", "PERMISSION_DENIED",
    }
)  # fmt: skip
"""What MLflow answers about one run, which says nothing about others."""
_NO_NAME = late_pattern(r"[^\w.\- :/]")
_NAME_MOST = 250


class MlflowTracker:
    """Writes members into MLflow.

    Args:
        uri: The tracking server or store; empty for MLFLOW_TRACKING_URI, as MLflow has it.
        experiment: The experiment of runs that csub makes.

    Raises:
        StateError: MLflow is not installed.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow
        except ImportError as error:
            raise StateError(
                f"--to=mlflow needs MLflow ({error})",
                hint="install it alongside csub: pip install 'slurm_colloc[mlflow]'",
            ) from error
        self._uri = uri or str(mlflow.get_tracking_uri())
        self._experiment = experiment
        self._clients: dict[str, MlflowClient] = {}

    def track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
        """Write a member; what was done, for people.

        Args:
            values: The member.
            own: The run that it has opened itself; None for none.
            stamp: Which figures these are: what has them already is left as it is.

        Raises:
            MemberRefused: The server refuses it.
            NodeError: The server does not answer.
        """
        from mlflow.exceptions import MlflowException

        try:
            return self._track(values, own, stamp)
        except (MlflowException, OSError) as error:
            first = str(error).partition("\n")[0][:300]
            code = getattr(error, "error_code", "")
            kind = MemberRefused if code in _OF_THIS_RUN else NodeError
            raise kind(f"MLflow did not take {values.name}: {escape_controls(first)}") from error

    def _track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
        uri = self._uri if own is None else _make_absolute(own.uri, own.directory)
        client = self._open(uri or self._uri)
        if own is not None:
            run = client.get_run(own.run)
            word = f"added to its run {own.run}"
        else:
            run, word = self._find_or_make(client, values)
        if run.data.tags.get(_DONE) == stamp:
            return f"is in run {run.info.run_id} already"
        run_id = run.info.run_id
        self._write(client, run, values)
        self._end(client, run, values, is_own=own is not None)
        # Last: what was interrupted is written again.
        client.set_tag(run_id, _DONE, stamp)
        return word

    def _open(self, uri: str) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        if uri not in self._clients:
            self._clients[uri] = MlflowClient(tracking_uri=uri)
        return self._clients[uri]

    def _find_or_make(self, client: MlflowClient, values: TrackerValues) -> tuple[Any, str]:
        experiment = client.get_experiment_by_name(self._experiment)
        experiment_id = (
            client.create_experiment(self._experiment)
            if experiment is None
            else experiment.experiment_id
        )
        member = values.tags["csub.member"].replace("'", "")
        started = round(values.started_at * 1000)
        known = client.search_runs(
            [experiment_id], filter_string=f"tags.`csub.member` = '{member}'", max_results=20
        )
        for run in known:
            if run.info.start_time == started:
                return run, f"renewed run {run.info.run_id}"
        run = client.create_run(experiment_id, start_time=started, run_name=values.name)
        return run, f"made run {run.info.run_id}"

    @staticmethod
    def _write(client: MlflowClient, run: Any, values: TrackerValues) -> None:
        from mlflow.entities import Metric, Param, RunTag

        run_id, known = run.info.run_id, run.data.params
        # Series are whole once they were written: what is new later are figures.
        moments = [
            Metric(name, value, round((values.started_at + seconds) * 1000), round(seconds))
            for seconds, found in (() if _DONE in run.data.tags else values.series)
            for name, value in found.items()
        ]
        at = values.ended_at if values.ended_at is not None else values.started_at
        # Names of their own: the last point of a series is no figure of the whole run.
        moments += [
            Metric(f"{PREFIX}total/{name.removeprefix(PREFIX)}", value, round(at * 1000), 0)
            for name, value in values.figures.items()
        ]
        for place in range(0, len(moments), _BATCH):
            client.log_batch(run_id, metrics=moments[place : place + _BATCH])
        # A parameter that the program has logged stays: MLflow lets none change.
        named = {choose_name(name): value for name, value in values.parameters.items() if value}
        fresh = [Param(name, value) for name, value in named.items() if name not in known]
        tags = [RunTag(name, value) for name, value in values.tags.items()]
        client.log_batch(run_id, params=fresh[:100], tags=tags)

    @staticmethod
    def _end(client: MlflowClient, run: Any, values: TrackerValues, *, is_own: bool) -> None:
        """A member that failed has a failed run, whatever its program has said last."""
        if values.ended_at is None:
            return
        status = "FAILED" if values.is_failed else "KILLED" if values.is_killed else "FINISHED"
        if is_own and run.info.status != "RUNNING" and not values.is_failed:
            return
        client.set_terminated(run.info.run_id, status, round(values.ended_at * 1000))


def choose_name(name: str) -> str:
    """A parameter's name as MLflow takes it; pure.

    It may be a file's name there, so that it must not be one of another place.
    """
    found = _NO_NAME.sub("_", name)[:_NAME_MOST]
    is_plain = posixpath.normpath(found) == found and not found.startswith(("/", ".."))
    return found if is_plain and found != "." else re.sub(r"[./]", "_", found) or "_"


def _make_absolute(uri: str, directory: str) -> str:
    """A store that the program named by a path in its own directory."""
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path(directory) / uri.removeprefix('sqlite:///')}"
    return str(Path(directory) / uri) if uri and ":" not in uri else uri


# ---- Members into W&B: into the run that a member has opened, else into one of its own -----------

_SECONDS = f"{PREFIX}seconds"


class WandbTracker:
    """Writes members into W&B.

    Args:
        project: The project of runs that csub makes.
        mode: `online`, `offline`, or empty for WANDB_MODE.
        directory: Where W&B keeps the files of runs that csub makes.

    Raises:
        StateError: W&B is not installed.
    """

    def __init__(self, project: str, mode: str, directory: str) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise StateError(
                f"--to=wandb needs W&B ({error})",
                hint="install it alongside csub: pip install 'slurm_colloc[wandb]'",
            ) from error
        self._project = project
        self._mode = mode
        self._directory = directory

    def track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
        """Write a member; what was done, for people.

        Args:
            values: The member.
            own: The run that it has opened itself; None for none.
            stamp: Which figures these are.

        Raises:
            NodeError: W&B refuses it or does not answer.
        """
        import wandb

        run_id = own.run if own is not None else _make_id(values)
        mode: Any = (
            self._mode or (own.mode if own is not None else "") or os.environ.get("WANDB_MODE")
        )
        try:
            run = wandb.init(
                id=run_id,
                project=(own.project if own is not None else "") or self._project,
                entity=(own.entity if own is not None else "") or None,
                name=None if own is not None else values.name,
                dir=(own.root if own is not None else "") or self._directory,
                mode=mode or None,
                resume="allow",
                # A program's own configuration stays as it is.
                config=None if own is not None else dict(values.parameters),
                settings=_choose_settings(own),
            )
            _write(run, values, stamp)
            # FAILED is failed, whatever the program has said last.
            run.finish(exit_code=1 if values.is_failed else 255 if values.is_killed else 0)
        except (wandb.Error, OSError) as error:
            first = str(error).partition("\n")[0][:300]
            raise NodeError(f"W&B did not take {values.name}: {first}") from error
        return f"added to its run {run_id}" if own is not None else f"is run {run_id}"


def _write(run: Any, values: TrackerValues, stamp: str) -> None:
    run.define_metric(f"{PREFIX}*", step_metric=_SECONDS)
    for seconds, found in values.series:
        run.log({_SECONDS: seconds, **found})
    for name, value in values.figures.items():
        # Not under the series' names: the last of them is no figure of the whole run.
        run.summary[f"{PREFIX}total/{name.removeprefix(PREFIX)}"] = value
    for name, text in values.tags.items():
        run.summary[name] = text
    run.summary["csub.tracked"] = stamp


def _choose_settings(own: TrackerRun | None) -> wandb.Settings:
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        # Those of this process are not the member's.
        x_disable_stats=True,
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
    )
    if own is not None and own.uri:
        settings.base_url = own.uri
    return settings


def _make_id(values: TrackerValues) -> str:
    """The id of a member's run: the same each time, and another where Slurm counts anew."""
    moment = hashlib.sha256(f"{values.started_at:.3f}".encode()).hexdigest()[:8]
    return f"csub-{re.sub(r'[^A-Za-z0-9]', '-', values.name)}-{moment}"
