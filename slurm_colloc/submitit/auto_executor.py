"""submitit's AutoExecutor and Job, with its names for options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.executor.function_executor import Executor
from slurm_colloc.executor.future_job import Job

P = ParamSpec("P")
T = TypeVar("T")

# submitit/auto/auto.py and submitit/slurm/slurm.py, 1.5: its name, and csub's.
_SHARED_NAMES = {
    "timeout_min": "time",
    "name": "job_name",
    "cpus_per_task": "cpus_per_task",
    "nodes": "nodes",
}
_OTHER_CLUSTERS = ("local_", "debug_", "lsf_")
_IGNORED = frozenset({"use_srun", "srun_args", "stderr_to_stdout", "max_num_timeout", "wckey"})


class SubmititJob(Job[T]):
    """A Job with the verbs that submitit's has besides."""

    def __init__(self, folder: str | Path, job_id: str) -> None:
        super().__init__(job_id, folder)

    async def async_result(self) -> T:
        """Its result, awaited."""
        return await self

    def awaitable(self) -> SubmititJob[T]:
        """Itself: `await job` works."""
        return self

    def get_logs_path(self, name: str) -> Path:
        """The path of its `stdout` or `stderr`; both are one file unless `slurm_error` is set."""
        return self.error_path if name == "stderr" else self.output_path

    def results(self) -> list[T]:
        """Its result as the list of its tasks' results; it has one task."""
        return [self.result()]

    def task(self, number: int) -> SubmititJob[T]:
        """Its only task.

        Raises:
            UsageProblem: Another is asked for.
        """
        if number != 0:
            raise UsageProblem(f"{self.job_id} has no task {number}: a job has one here")
        return self


class AutoExecutor(Executor):
    """An Executor that takes submitit's names for options.

    Args:
        folder: Where calls, results and outputs are written.
        cluster: `slurm` or None; others are refused.
        **options: submitit's options, `slurm_max_num_timeout` and its like among them.

    Raises:
        UsageProblem: An option is unknown or wrong, or the cluster is another.
    """

    job_class = SubmititJob

    def __init__(
        self, folder: str | os.PathLike[str], cluster: str | None = None, **options: Any
    ) -> None:
        if cluster not in (None, "slurm"):
            raise UsageProblem(f"cluster={cluster!r}: csub's jobs run on Slurm")
        super().__init__(folder)
        self.update_parameters(**options)

    def update_parameters(self, **options: Any) -> None:
        """Change options by submitit's names, such as `timeout_min=4` and `slurm_partition="dev"`.

        Raises:
            UsageProblem: An option is unknown or wrong.
        """
        super().update_parameters(**translate_options(options))

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> SubmititJob[Any]:
        """Submit one call."""
        job = super().submit(fn, *args, **kwargs)
        assert isinstance(job, SubmititJob)
        return job


def translate_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Csub's options for submitit's.

    Raises:
        UsageProblem: A job of several tasks is asked for, or an option is unknown.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SHARED_NAMES:
            found[_SHARED_NAMES[name]] = value
        elif name == "mem_gb":
            found["mem"] = f"{int(value * 1024)}M"
        elif name == "gpus_per_node":
            found["gres"] = f"gpu:{value}" if value else None
        elif name == "tasks_per_node":
            if value not in (None, 1):
                raise UsageProblem(
                    f"tasks_per_node={value}: a job of several tasks has no single result here",
                    hint="submit each task as a call of its own, with map_array",
                )
        elif name.startswith("slurm_"):
            found.update(_translate_own(name.removeprefix("slurm_"), value))
        elif not name.startswith(_OTHER_CLUSTERS):
            raise UsageProblem(
                f"{name}={value!r} is not an option of submitit's",
                hint=f"slurm_{name} hands it to csub",
            )
    return found


def _translate_own(name: str, value: Any) -> dict[str, Any]:
    if name == "additional_parameters":
        return dict(value or {})
    if name == "signal_delay_s":
        return {"signal": f"B:USR2@{value}"}
    if name in _SHARED_NAMES or name in ("mem_gb", "gpus_per_node", "tasks_per_node"):
        return translate_options({name: value})
    return {} if name in _IGNORED else {name: value}
