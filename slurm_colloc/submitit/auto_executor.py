"""submitit's AutoExecutor and Job, with its names for options.

Also: submitit's JobEnvironment: what a call may ask about the job that it runs in; submitit's
helpers: commands as functions, and callables that go on where they stopped.
"""

from __future__ import annotations

import concurrent.futures
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.executor.function_executor import Executor, Job

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


# ---- submitit's JobEnvironment: what a call may ask about the job that it runs in ----------------


class JobEnvironment:
    """The job of the process that asks; a member has one task.

    Raises:
        RuntimeError: The process is in no job.
    """

    num_tasks = 1
    num_nodes = 1
    node = 0
    global_rank = 0
    local_rank = 0

    def __init__(self) -> None:
        if not self.activated():
            raise RuntimeError("this process is in no job: it has no SLURM_JOB_ID")
        self.hostname = socket.gethostname()
        self.hostnames = [self.hostname]

    @staticmethod
    def activated() -> bool:
        """The process is in a job."""
        return "SLURM_JOB_ID" in os.environ

    @property
    def raw_job_id(self) -> str:
        """Slurm's id of the pack."""
        return os.environ["SLURM_JOB_ID"]

    @property
    def job_id(self) -> str:
        """`4711_3` for a task of an array, `4711` otherwise, as `Job.job_id`."""
        array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
        return f"{array}_{task}" if array and task else self.raw_job_id


# ---- submitit's helpers: commands as functions, and callables that go on where they stopped ------


class DelayedSubmission:
    """A call that is made later; what `checkpoint` returns.

    Args:
        function: The callable.
        *args: Its arguments.
        **kwargs: Its arguments by name.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def result(self) -> Any:
        """Make the call now."""
        return self.function(*self.args, **self.kwargs)


class Checkpointable:
    """A callable that goes on as it is, with its first arguments; for others to derive from."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The work; a class of the user's says what it is."""
        raise NotImplementedError

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission:
        """How to go on after the time limit."""
        return DelayedSubmission(self, *args, **kwargs)


class CommandFunction:
    """A command as a function that returns what it has written to standard output.

    Args:
        command: Program and arguments.
        verbose: Show its output, too, as it comes.
        cwd: The directory to run it in.
        env: Variables that it gets besides.
    """

    def __init__(
        self,
        command: Sequence[str],
        verbose: bool = True,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(command, str):
            raise TypeError("the command is a list of words, as in ['which', 'python']")
        self.command, self.verbose, self.cwd, self.env = list(command), verbose, cwd, env

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run it with more arguments; kwargs are `--name=value`.

        Raises:
            RuntimeError: It has failed; the end of its standard error is in the message.
        """
        words = [*self.command, *map(str, args), *(f"--{k}={v}" for k, v in kwargs.items())]
        ended = subprocess.run(
            words,
            cwd=self.cwd,
            env={**os.environ, **(self.env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if self.verbose:
            sys.stdout.write(ended.stdout)
            sys.stderr.write(ended.stderr)
        if ended.returncode:
            raise RuntimeError(
                f"{words[0]} has ended with exit status {ended.returncode}: "
                f"{ended.stderr.strip()[-1000:]}"
            )
        return ended.stdout.strip()


def as_completed(
    jobs: Iterable[Job[Any]],
    timeout: float | None = None,
    poll_frequency: float = 10,  # noqa: ARG001  # submitit's name
) -> Iterator[concurrent.futures.Future[Any]]:
    """Jobs as they end."""
    return concurrent.futures.as_completed(list(jobs), timeout)
