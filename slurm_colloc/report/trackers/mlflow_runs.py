"""Members into MLflow: into the run that a member has opened, else into one of its own."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.trackers.track_members import MemberRefused
from slurm_colloc.report.trackers.tracker_values import PREFIX, TrackerValues
from slurm_colloc.store.pack.kept_tracker_runs import TrackerRun

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

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
_NO_NAME = re.compile(r"[^\w.\- :/]")
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
