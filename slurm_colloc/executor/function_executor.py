"""The Executor: functions and scripts as jobs that share GPUs, with their results back.

Also: one thread of a process that gives jobs their results as their members end; a job from Python:
a future whose result comes from a member of a pack.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from slurm_colloc.errors import CollocError, NotFound, UsageProblem
from slurm_colloc.executor.calls import PythonCall, find_calls, read_result
from slurm_colloc.executor.submit_calls import (
    CallSetup,
    SeenMember,
    SubmittedCalls,
    build_failure,
    check_options,
    open_session,
    read_states,
    submit_functions,
    submit_script,
)
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import MemberId, MemberState, Selection

# ---- One thread of a process that gives jobs their results as their members end ------------------

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
STATES_EVERY_S = (0.5, 10.0)
"""How often states are asked for at first and at last: results are files, states are Slurm's."""


class JobFollower:
    """Looks for results and ends of jobs until all have them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._jobs: set[Job[Any]] = set()
        self._thread: threading.Thread | None = None

    def follow(self, jobs: Iterable[Job[Any]]) -> None:
        """Follow jobs that were just submitted, or found again."""
        with self._lock:
            self._jobs.update(jobs)
            self._wake.set()
            if self._thread is None and self._jobs:
                self._thread = threading.Thread(target=self._run, name="csub-jobs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        states_pause, states_at = STATES_EVERY_S[0], 0.0
        while True:
            with self._lock:
                self._jobs = {job for job in self._jobs if not job.done()}
                jobs = list(self._jobs)
                if not jobs:
                    self._thread = None
                    return
            collect_results(jobs)
            if time.monotonic() >= states_at:
                look_at_states([job for job in jobs if not job.done()])
                states_at = time.monotonic() + states_pause
                states_pause = min(STATES_EVERY_S[1], states_pause * 1.3)
            if self._wake.wait(pause):
                self._wake.clear()
                pause, states_pause = FIRST_PAUSE_S, STATES_EVERY_S[0]
            else:
                pause = min(LONGEST_PAUSE_S, pause * 1.2)


def collect_results(jobs: Iterable[Job[Any]]) -> None:
    """Settle jobs whose results are there; one listing for each submission."""
    there: dict[Path, frozenset[str]] = {}
    for job in jobs:
        directory = job.calls_directory
        if directory is None:
            continue
        if directory not in there:
            try:
                there[directory] = frozenset(path.name for path in directory.iterdir())
            except OSError:
                there[directory] = frozenset()
        if job.result_name in there[directory]:
            job.settle_by_result()


def look_at_states(jobs: list[Job[Any]]) -> None:
    """Settle jobs whose members have ended without a result."""
    if not jobs:
        return
    asked = time.monotonic()
    try:
        states = read_states(job.member for job in jobs)
    except (CollocError, OSError):
        # Slurm or the file system does not answer: that says nothing about the members.
        return
    for job in jobs:
        job.settle_by_state(states.get(job.member), asked)


follower = JobFollower()


# ---- A job from Python: a future whose result comes from a member of a pack ----------------------

T = TypeVar("T")

RESULT_GRACE_S = 10.0
"""How long after a member's end its result may still come, through a file system of a network."""


UNKNOWN = "UNKNOWN"
"""The state of a member that csub knows nothing of any more, as submitit has it."""


class Job(concurrent.futures.Future[T], Generic[T]):
    """One call of a function, or one script, that was submitted.

    It is a `concurrent.futures.Future`: `result`, `exception`, `done`, `add_done_callback`,
    `concurrent.futures.wait` and `as_completed` work, and so does `await job`. The result of a
    script is 0; every other exit status is an exception.

    Args:
        job_id: A job that was submitted before, as `job_id` had it, or `4711/3`.
        folder: The folder of the Executor that submitted it; None for a script.

    Raises:
        NotFound: There is no such job.
        UsageProblem: It is no id of one job.
    """

    def __init__(self, job_id: str, folder: str | Path | None = None) -> None:
        self._prepare()
        job, number = _parse_one(job_id)
        is_own = is_own_number(job)
        if folder is None:
            self._tell(_find_member(job, number), None, 0)
        else:
            known = _find_member(job, number) if is_own else None
            if known is not None:
                job, number = known.job, known.number
            directory, place, found = find_calls(Path(folder), job, number)
            self._tell(known or MemberId(job, found), directory, place)
        self._is_task = is_own or number is not None
        follower.follow([self])

    @classmethod
    def unsubmitted(cls) -> Job[T]:
        """One that waits for its submission, as in `Executor.batch`."""
        job = cls.__new__(cls)
        job._prepare()
        return job

    def _prepare(self) -> None:
        super().__init__()
        self._member: MemberId | None = None
        self._directory: Path | None = None
        self._place = 0
        self._is_task = False
        self._ended_at: float | None = None
        self._seen: SeenMember | None = None

    def note_submitted(self, submitted: SubmittedCalls, place: int) -> None:
        """Tell it which member it is; for the executor alone."""
        member = MemberId(submitted.job_id, submitted.numbers[place], submitted.joined_as)
        self._tell(member, submitted.directory, place)
        self._is_task = submitted.is_array or member.number != 1

    def _tell(self, member: MemberId, directory: Path | None, place: int) -> None:
        self._member, self._directory, self._place = member, directory, place

    @property
    def member(self) -> MemberId:
        """Its name as csub's commands take it: `str(job.member)` is `4711/3`.

        Raises:
            UsageProblem: It is not submitted yet.
        """
        if self._member is None:
            raise UsageProblem("this job is submitted where its batch() ends")
        return self._member

    @property
    def job_id(self) -> str:
        """`4711_3` for a task of an array, `4711` for a job by itself; csub takes both.

        A job that has joined a pack has a number of its own.
        """
        member = self.member
        if member.joined_as:
            return member.joined_as
        return f"{member.job}_{member.number}" if self._is_task else member.job

    @property
    def state(self) -> str:
        """The member's state, in Slurm's words: `PENDING`, `RUNNING`, `COMPLETED`, ...

        A result is there a moment before its member has ended, and counts as the end.

        Raises:
            CollocError: It cannot be asked for.
        """
        seen = self._seen
        if seen is None or not seen.is_final:
            seen = self._look()
        if super().done() and (seen is None or not seen.is_final):
            if self.cancelled():
                return MemberState.CANCELLED.value
            failed = self.exception() is not None
            return (MemberState.FAILED if failed else MemberState.COMPLETED).value
        return seen.state.value if seen is not None else UNKNOWN

    def _look(self) -> SeenMember | None:
        found = read_states([self.member]).get(self.member)
        if found is not None:
            self._seen = found
        return found

    def done(self) -> bool:
        """It has a result, an exception, or was cancelled."""
        if not super().done() and self._member is not None:
            collect_results([self])
        return super().done()

    def running(self) -> bool:
        """Its member runs."""
        return not super().done() and self.state == MemberState.RUNNING

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end, at most for a number of seconds; True where it has ended."""
        concurrent.futures.wait([self], timeout)
        return self.done()

    def cancel(self) -> bool:
        """End its member, also one that runs, as `csub cancel` does.

        Returns:
            False where it had ended before.

        Raises:
            CollocError: It could not be ended.
        """
        return cancel_jobs([self]) == 1

    def stdout(self) -> str:
        """What it has written to its output file so far, standard error too unless `error=` is set.

        Raises:
            NotFound: csub does not know the member any more.
        """
        return self._read_text(self.output_path)

    def stderr(self) -> str:
        """What it has written to standard error so far: its error file, or the file for both."""
        return self._read_text(self.error_path)

    @property
    def output_path(self) -> Path:
        """Its output file.

        Raises:
            NotFound: csub does not know the member any more.
        """
        return Path(self._require_seen().output)

    @property
    def error_path(self) -> Path:
        """Its error file; the output file where both go to one."""
        seen = self._require_seen()
        return Path(seen.error or seen.output)

    def _read_text(self, path: Path) -> str:
        from slurm_colloc.report.member_views import read_from

        parts = read_from(str(path), 0, self._require_seen().owner)
        return b"".join(parts).decode("utf-8", "replace")

    def _require_seen(self) -> SeenMember:
        # Where its node is part of the name, it is known only after the start.
        if self._seen is None or "%N" in self._seen.output:
            self._look()
        if self._seen is None:
            raise NotFound(f"csub does not know {self.member} any more")
        return self._seen

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        if self._member is None:
            return "<Job, not submitted yet>"
        end = "ended" if super().done() else "open"
        return f"<Job {self.job_id}, {end}>"

    @property
    def calls_directory(self) -> Path | None:
        """Where its call and its result lie; None for a script."""
        return self._directory

    @property
    def result_name(self) -> str:
        """The name of its result's file."""
        return f"{self._place}.result"

    def settle_by_result(self) -> bool:
        """Take the result from its file; False where there is none. For the follower."""
        if self._directory is None:
            return False
        found = read_result(self._directory, self._place, str(self.member))
        if found is None:
            return False
        self._settle(*found)
        return True

    def settle_by_state(self, seen: SeenMember | None, asked: float) -> None:
        """Take note of what its member is now. For the follower.

        Args:
            seen: The member; None where csub does not know it.
            asked: When that was asked, on the monotonic clock.
        """
        if seen is not None:
            self._seen = seen
            if not seen.is_final:
                self._ended_at = None
                return
        if self._directory is None:
            if seen is not None and seen.state is MemberState.COMPLETED:
                self._settle(0, None)
                return
        elif self.settle_by_result():
            return
        elif seen is not None and seen.state in (MemberState.COMPLETED, MemberState.FAILED):
            self._ended_at = self._ended_at or asked
            if time.monotonic() - self._ended_at < RESULT_GRACE_S:
                return
        if seen is None:
            # Only files of csub that are gone, or a clean, leave it without a trace.
            self._settle(None, NotFound(f"csub does not know {self.member} any more"))
            return
        self._settle(None, build_failure(seen))

    def _settle(self, value: Any, error: BaseException | None) -> None:
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            # Another thread was quicker, or it was cancelled.
            return

    def settle_cancelled(self) -> None:
        """Its member was told to end, at the user's wish."""
        if super().cancel():
            # Those who wait for several hear of it now.
            self.set_running_or_notify_cancel()


def cancel_jobs(jobs: list[Job[Any]]) -> int:
    """End members in one go.

    Returns:
        How many had not ended before.

    Raises:
        CollocError: One could not be ended; all others were.
    """
    open_jobs = [job for job in jobs if not job.done()]
    if not open_jobs:
        return 0
    from slurm_colloc.session.cancel_and_requeue import cancel
    from slurm_colloc.session.session import Session

    cancel(Session.open_own(), Selection.of_each(job.member for job in open_jobs), yes=True)
    for job in open_jobs:
        job.settle_cancelled()
    return len(open_jobs)


def _parse_one(text: str) -> tuple[str, int | None]:
    selection = Selection.parse(text)
    if selection.ranges is None:
        return selection.job, None
    (first, last), *more = selection.ranges
    if more or first != last:
        raise UsageProblem(f"{text} names several jobs", hint="a Job is one, as in 4711_3")
    return selection.job, first


def _find_member(job: str, number: int | None) -> MemberId:
    wanted = Selection(job) if number is None else Selection.of(job, (number,))
    found = [m for _, members in open_session().survey([wanted], follow_all=False) for m in members]
    if len(found) != 1:
        raise UsageProblem(f"{wanted} names {len(found)} jobs", hint="a Job is one, as in 4711_3")
    return found[0].member


# ---- The Executor: functions and scripts as jobs that share GPUs, with their results back --------

P = ParamSpec("P")

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
