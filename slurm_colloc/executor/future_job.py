"""A job from Python: a future whose result comes from a member of a pack."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slurm_colloc.errors import NotFound, UsageProblem
from slurm_colloc.executor.follow_jobs import collect_results, follower
from slurm_colloc.model.member import MemberId, MemberState, Selection

if TYPE_CHECKING:
    from slurm_colloc.executor.job_states import SeenMember
    from slurm_colloc.executor.submit_calls import SubmittedCalls

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
        job_id: A job that was submitted before, `4711`, `4711_3` or `4711/3`.
        folder: The folder of the Executor that submitted it; None for a script.

    Raises:
        NotFound: There is no such job.
        UsageProblem: It is no id of one job.
    """

    def __init__(self, job_id: str, folder: str | Path | None = None) -> None:
        self._prepare()
        job, number = _parse_one(job_id)
        if folder is None:
            self._tell(_find_member(job, number), None, 0)
        else:
            from slurm_colloc.executor.call_files import find_calls

            directory, place, found = find_calls(Path(folder), job, number)
            self._tell(MemberId(job, found), directory, place)
        self._is_task = number is not None
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
        member = MemberId(submitted.job_id, submitted.numbers[place])
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
        """`4711_3` for a task of an array, `4711` for a job by itself; csub takes both."""
        member = self.member
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
        from slurm_colloc.executor.job_states import read_states

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
        from slurm_colloc.report.member_output import read_from

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
        from slurm_colloc.executor.call_files import read_result

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
        from slurm_colloc.executor.job_states import build_failure

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
    from slurm_colloc.cli.change.cancel_members import cancel
    from slurm_colloc.cli.session import Session

    numbers: dict[str, set[int]] = {}
    for job in open_jobs:
        numbers.setdefault(job.member.job, set()).add(job.member.number)
    chosen = [Selection.of(name, found) for name, found in numbers.items()]
    cancel(Session.open_own(), chosen, yes=True)
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
    from slurm_colloc.executor.job_states import open_session

    wanted = Selection(job) if number is None else Selection.of(job, (number,))
    found = [m for _, members in open_session().survey([wanted], follow_all=False) for m in members]
    if len(found) != 1:
        raise UsageProblem(f"{wanted} names {len(found)} jobs", hint="a Job is one, as in 4711_3")
    return found[0].member
