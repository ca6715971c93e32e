"""Members into W&B: into the run that a member has opened, else into one of its own."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.report.trackers.tracker_values import PREFIX, TrackerValues
from slurm_colloc.store.kept_tracker_runs import TrackerRun

if TYPE_CHECKING:
    import wandb

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
