"""The Executor: functions and scripts as jobs that share GPUs, with their results back."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.executor.call_files import PythonCall
from slurm_colloc.executor.follow_jobs import follower
from slurm_colloc.executor.future_job import Job, cancel_jobs
from slurm_colloc.executor.submit_calls import (
    CallSetup,
    check_options,
    submit_functions,
    submit_script,
)

P = ParamSpec("P")
T = TypeVar("T")

_NAMES_OF_OWN = frozenset({"python", "setup", "array_parallelism"})


@dataclass(frozen=True)
class Progress:
    """How far an Executor's jobs are; `str()` is one line.

    Attributes:
        total: Jobs that were submitted.
        completed: Those with a result.
        failed: Those with an exception.
        cancelled: Those that were cancelled.
        running: Those whose members run.
    """

    total: int
    completed: int
    failed: int
    cancelled: int
    running: int

    @property
    def pending(self) -> int:
        """Those whose members wait."""
        return self.total - self.completed - self.failed - self.cancelled - self.running

    def __str__(self) -> str:
        done = self.completed + self.failed + self.cancelled
        parts = [f"{done} of {self.total} done"]
        counts = {n: getattr(self, n) for n in ("failed", "cancelled", "running", "pending")}
        parts += [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join(parts)


class Executor(concurrent.futures.Executor):
    """Submits functions as jobs of csub; what is submitted together shares GPUs.

    Args:
        folder: Where calls, results and outputs are written; nodes must see it, too. A part with
            `%j`, as submitit takes it, is left out: submissions have directories of their own.
        **options: csub's options with `_` for `-`, such as `gres="gpu:1"`, `time=10` (minutes),
            `cpus_per_task=2`, `gpu_mem="10G"`, and three more: `python`, the members' interpreter
            (default: this one), `setup`, lines of shell before it, and `array_parallelism`, how
            many calls of one submission run at once at most.

    Raises:
        UsageProblem: An option is unknown or wrong.
    """

    job_class: type[Job[Any]] = Job

    def __init__(self, folder: str | os.PathLike[str] = "csub_calls", **options: Any) -> None:
        parts = Path(folder).parts
        plain = [part for part in parts if "%" not in part]
        # What is submitted after a change of the working directory lies there, too.
        self.folder = Path(*plain).absolute()
        self.jobs: list[Job[Any]] = []
        self._options: dict[str, Any] = {}
        self._batch: list[tuple[PythonCall, Job[Any]]] | None = None
        self._is_shut_down = False
        self.update_parameters(**options)

    def update_parameters(self, **options: Any) -> None:
        """Change options for what is submitted from now on; None takes one away.

        Raises:
            UsageProblem: An option is unknown or wrong.
        """
        if self._batch is not None:
            raise UsageProblem("options cannot change within batch(): it is one submission")
        changed = {**self._options, **options}
        changed = {name: value for name, value in changed.items() if value is not None}
        check_options({k: v for k, v in changed.items() if k not in _NAMES_OF_OWN})
        _build_setup(self.folder, changed)
        self._options = changed

    @property
    def parameters(self) -> dict[str, Any]:
        """The options that hold now."""
        return dict(self._options)

    def submit(
        self, fn: Callable[P, T] | str | os.PathLike[str], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]:
        """Submit one call, or a script with its arguments.

        Raises:
            CollocError: Nothing was submitted.
            RuntimeError: The Executor was shut down.
        """
        self._refuse_after_shutdown()
        job: Job[T] = self.job_class.unsubmitted()
        if isinstance(fn, str | os.PathLike):
            return self._submit_script(os.fspath(fn), args, kwargs, job)
        call = PythonCall(fn, args, kwargs)
        if self._batch is not None:
            self._batch.append((call, job))
        else:
            self._submit_calls([(call, job)])
        return job

    def map_array(self, fn: Callable[..., T], *iterables: Iterable[Any]) -> list[Job[T]]:
        """Submit a call for each set of arguments, all as one submission that packs itself.

        Returns:
            The jobs, in the order of the arguments.

        Raises:
            CollocError: Nothing was submitted.
        """
        self._refuse_after_shutdown()
        calls = [PythonCall(fn, args, {}) for args in zip(*iterables)]  # noqa: B905  # as map()
        made: list[tuple[PythonCall, Job[Any]]] = [
            (call, self.job_class.unsubmitted()) for call in calls
        ]
        if self._batch is not None:
            self._batch += made
        elif made:
            self._submit_calls(made)
        return [job for _, job in made]

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,  # noqa: ARG002  # every call is a member
    ) -> Iterator[T]:
        """The results in the order of the arguments; the calls are one submission.

        A call that raises does so here, when its turn comes; the others go on.

        Args:
            fn: The function.
            *iterables: Its arguments.
            timeout: Seconds from now after which a result that is not there is a TimeoutError.
            chunksize: Without meaning here: every call is a job.
        """
        import time

        until = None if timeout is None else time.monotonic() + timeout
        jobs = self.map_array(fn, *iterables)

        def results() -> Iterator[T]:
            for job in jobs:
                yield job.result(None if until is None else max(0.0, until - time.monotonic()))

        return results()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Submit all calls of a `with` block as one submission, when it ends.

        Until then their jobs have no id. Where the block raises, nothing is submitted.

        Raises:
            CollocError: Nothing was submitted.
        """
        if self._batch is not None:
            raise UsageProblem("this Executor is within a batch() already")
        self._batch = []
        try:
            yield
            made = self._batch
        except BaseException:
            for _, job in self._batch:
                job.settle_cancelled()
            raise
        finally:
            self._batch = None
        if made:
            self._submit_calls(made)

    def wait(
        self, jobs: Iterable[Job[Any]] | None = None, timeout: float | None = None
    ) -> concurrent.futures._base.DoneAndNotDoneFutures[Any]:
        """Wait for jobs to end, for all of this Executor where none are named.

        Args:
            jobs: The jobs.
            timeout: Seconds; None for as long as it takes.

        Returns:
            The jobs that have ended (`done`) and the others (`not_done`).
        """
        return concurrent.futures.wait(self.jobs if jobs is None else list(jobs), timeout)

    def cancel(self, jobs: Iterable[Job[Any]] | None = None) -> int:
        """End jobs, all of this Executor where none are named; how many had not ended.

        Raises:
            CollocError: One could not be ended; all others were.
        """
        return cancel_jobs(self.jobs if jobs is None else list(jobs))

    def progress(self) -> Progress:
        """How far this Executor's jobs are.

        Raises:
            CollocError: The members' states cannot be read.
        """
        from slurm_colloc.executor.job_states import read_states
        from slurm_colloc.model.member import MemberState

        done = [job for job in self.jobs if job.done()]
        cancelled = sum(job.cancelled() for job in done)
        failed = sum(not job.cancelled() and job.exception() is not None for job in done)
        left = [job.member for job in self.jobs if not job.done()]
        states = read_states(left) if left else {}
        return Progress(
            total=len(self.jobs),
            completed=len(done) - failed - cancelled,
            failed=failed,
            cancelled=cancelled,
            running=sum(seen.state is MemberState.RUNNING for seen in states.values()),
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; a `with` block ends so.

        Args:
            wait: Wait for all jobs to end. Without, they go on in Slurm.
            cancel_futures: End all jobs first, also those that run.
        """
        self._is_shut_down = True
        if cancel_futures:
            self.cancel()
        if wait:
            self.wait()

    def _refuse_after_shutdown(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _submit_script(self, script: str, args: Sequence[Any], kwargs: Any, job: Job[T]) -> Job[T]:
        if kwargs:
            raise UsageProblem(
                f"{script}: a script takes no {next(iter(kwargs))}=",
                hint="options belong to the Executor, and arguments are given by their order",
            )
        if self._batch is not None:
            raise UsageProblem(f"{script}: batch() submits functions only")
        job.note_submitted(submit_script(script, args, self._setup), 0)
        self._keep([job])
        return job

    def _submit_calls(self, made: Sequence[tuple[PythonCall, Job[Any]]]) -> None:
        submitted = submit_functions([call for call, _ in made], self._setup)
        for place, (_, job) in enumerate(made):
            job.note_submitted(submitted, place)
        self._keep([job for _, job in made])

    def _keep(self, jobs: Sequence[Job[Any]]) -> None:
        self.jobs += jobs
        follower.follow(jobs)

    @property
    def _setup(self) -> CallSetup:
        return _build_setup(self.folder, self._options)


def _build_setup(folder: Path, options: dict[str, Any]) -> CallSetup:
    setup = options.get("setup", ())
    parallelism = options.get("array_parallelism", 0)
    if isinstance(setup, str) or not all(isinstance(line, str) for line in setup):
        raise UsageProblem(f"setup={setup!r}: it is a list of lines for the shell")
    if not isinstance(parallelism, int) or parallelism < 0:
        raise UsageProblem(f"array_parallelism={parallelism!r}: it is a number of calls")
    return CallSetup(
        folder=folder,
        options={name: value for name, value in options.items() if name not in _NAMES_OF_OWN},
        python=os.fspath(options.get("python", sys.executable)),
        setup=tuple(setup),
        parallelism=parallelism,
    )


def submit(
    what: Callable[..., T] | str | os.PathLike[str],
    *arguments: Any,
    folder: str | os.PathLike[str] = "csub_calls",
    **options: Any,
) -> Job[T]:
    """Submit one script or one call of a function, as `csub SCRIPT ARGUMENTS` would.

    Args:
        what: A script's path, or a function; `functools.partial` gives it keyword arguments.
        *arguments: Its arguments.
        folder: See Executor; a script does not need it.
        **options: See Executor.

    Raises:
        CollocError: Nothing was submitted.
    """
    return Executor(folder, **options).submit(what, *arguments)
