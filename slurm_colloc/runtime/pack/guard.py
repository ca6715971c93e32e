"""The batch script's own process: the parent of the runners, which it outlives if one is killed.

Also: A pack whose runner was killed starts again, as it would after the loss of its node.

Slurm ends all that a batch script has left in the moment in which its own process ends. So that
process is this one. It does nothing but hand on signals and wait. After a runner that died of a
signal it waits until the files of that pack's MPS daemon are gone, and has Slurm asked to start the
job again; then all members have their time to end, as at every requeue. Where that is refused, the
other runners of the job go on, and members of this one run to their ends. Where Slurm does not
answer it stands, its members run on, and it asks again.

A job with several GPU sets has a runner for each. What they need is loaded, and the job divided, by
the guard's only child, the starter: it forks the runners, names them to the guard, which adopts
them, and ends. Of a job with several nodes each has a guard. That of the first one also waits for
the steps in which the others run, and where one ends it sees what is left there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, StateError
from slurm_colloc.model.sbatch.quantities import parse_time_limit_s
from slurm_colloc.runtime.guarded_steps import Journal, is_passing
from slurm_colloc.runtime.outcome.verdict import judge_pack
from slurm_colloc.runtime.pause_members import list_wrappers
from slurm_colloc.runtime.queue.allocation import Allocation, read_allocation
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmCommands
from slurm_colloc.store.all_packs import list_gpu_set_packs
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import StateRecord, read_attempt, was_left
from slurm_colloc.store.pack.pack_directory import list_members, read_pack
from slurm_colloc.store.pack.written_ends import (
    RunnerKill,
    forget_kill,
    list_kills,
    read_kill,
    read_settled,
    write_kill,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


HANDED_ON = (
    signal.SIGTERM,
    signal.SIGURG,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGINT,
)
"""What Slurm, csub and users send to a batch script."""

FILES_WAIT_S = 3.0
"""How long the keeper may take to remove its files; it needs milliseconds."""

ORPHANS_WAIT_S = 600.0
"""How long Slurm may take to end what is left of a job; it does after KillWait at the latest."""

ResumePaused = Callable[[str], object]
"""Lets members go on that a runner had paused; told the directory of its pack."""

ASK_AGAIN_S = 5.0
"""How long after a question that Slurm has not answered it is asked again."""

Requeue = Callable[[str, int, float], "bool | None"]
"""Told the pack of a killed runner, the signal that it died of and when; True where Slurm ends by
itself what is left of the job, None where it is to be asked again."""

LeaveNode = Callable[[str], bool]
"""Told the first pack of a node whose step has ended; True where its members go on elsewhere."""

_AWAITED = (*HANDED_ON, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36
_FILES_POLL_S = 0.005
_ORPHANS_POLL_S = 0.05


class GuardPipe:
    """A runner's end of the line to its guard.

    Args:
        descriptor: Where it writes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def announce(self, directory: str) -> None:
        """Say which directory must be gone before Slurm may end everything."""
        self._say(b"files %d %s\n" % (os.getpid(), os.fsencode(directory)))

    def name_runners(self, packs: Mapping[int, str], nodes: Mapping[int, str]) -> None:
        """Say, as the starter, which runners have come in its place.

        Args:
            packs: By process id the directory of each one's pack.
            nodes: By process id of the srun that stands for another node the directory of the pack
                of that node's first set.
        """
        named = ((b"runner", packs), (b"node", nodes))
        self._say(
            b"".join(
                b"%s %d %s\n" % (word, pid, os.fsencode(pack))
                for word, found in named
                for pid, pack in found.items()
            )
        )

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line)


def stand_guard(
    pack: str = "",
    requeue: Requeue | None = None,
    resume_paused: ResumePaused = lambda _: None,
    leave_node: LeaveNode = lambda _: False,
    *,
    has_starter: bool = False,
) -> GuardPipe:
    """Go on as a child of this process, which ends as the child does.

    Args:
        pack: The directory of the child's pack.
        requeue: What is to be done about a runner that was killed; None for nothing.
        resume_paused: Called after a runner that was killed.
        leave_node: Called after the end of another node's step.
        has_starter: The child is no runner but starts them, and ends once it has named them.

    Raises:
        OSError: There is no second process to be had.
    """
    if requeue is not None or has_starter:
        # Before there is a runner that could be killed; it does not inherit this.
        _adopt_orphans()
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # Where it is ignored, as a process may have inherited it, the end of a child wakes nothing.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Nothing may be lost between the fork and the handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    try:
        child = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if child != 0:
        os.close(write_end)
        guard = _Guard(child, pack, read_end, requeue, (resume_paused, leave_node))
        for number in HANDED_ON:
            signal.signal(number, guard.hand_on)
        if has_starter:
            guard.await_starter(child)
        guard.watch()
    os.close(read_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return GuardPipe(write_end)


class _Guard:
    """Waits for runners; see `stand_guard`."""

    def __init__(
        self,
        child: int,
        pack: str,
        read_end: int,
        requeue: Requeue | None,
        follow: tuple[ResumePaused, LeaveNode],
    ) -> None:
        self._runners = {child: pack}
        self._nodes: dict[int, str] = {}
        self._read_end = read_end
        self._requeue = requeue
        self._resume_paused, self._leave_node = follow
        self._files: dict[int, list[str]] = {}
        self._worst = 0
        self._killed_by = 0
        self._undecided: list[tuple[str, int, float]] = []
        """Of which killed runners Slurm has said nothing yet: what `Requeue` is told."""
        self._ask_at = 0.0
        self._ends_by: float | None = None
        """When what Slurm is ending is not waited for any longer; None while the job goes on."""

    def hand_on(self, number: int, _frame: object = None) -> None:
        """Give a signal to all runners here; also a handler of it.

        On other nodes Slurm itself signals the steps in which they run.
        """
        # One that is collected is not in the list any more, so its pid is no other's.
        for pid in list(self._runners):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # noqa: TID251 - its own

    def await_starter(self, starter: int) -> None:
        """Put the runners in the place of the starter, once it has named them and ended.

        Until it is known who is to hear them, signals wait: the caller has blocked them.
        """
        ended: dict[int, int] = {}
        while starter not in ended:
            pid, status = os.waitpid(-1, 0)
            ended[pid] = status
        pack = self._runners.pop(starter)
        self._read()
        status = ended.pop(starter)
        if not self._runners:
            self._note_end(starter, pack, status)
        # Those that were as quick as that.
        for pid in self._runners.keys() & ended.keys():
            self._note_end(pid, self._runners.pop(pid), ended[pid])
        for pid in self._nodes.keys() & ended.keys():
            self._note_node(self._nodes.pop(pid), ended[pid])

    def watch(self) -> NoReturn:
        """Wait until all runners have ended, and end as the worst of them.

        Signals are blocked and waited for: a handler would not run for one that comes in the moment
        before a blocking call, until the next one comes.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        while self._runners or self._nodes or self._undecided or self._ends_by is not None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._undecided:
                    break
                pid = status = 0
            if pid in self._runners:
                self._note_end(pid, self._runners.pop(pid), status)
            elif pid in self._nodes:
                self._note_node(self._nodes.pop(pid), status)
            elif pid == 0:
                if self._ends_by is not None and time.monotonic() >= self._ends_by:
                    break
                self._wait_for_signal()
                self._ask_again()
        number = self._killed_by
        if not number:
            os._exit(self._worst)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)  # noqa: TID251 - its own
        os._exit(128 + number)

    def _wait_for_signal(self) -> None:
        """Hand on the next signal, unless it is that a child has ended."""
        if self._ends_by is not None:
            found = signal.sigtimedwait(_AWAITED, _ORPHANS_POLL_S)
        elif self._undecided:
            found = signal.sigtimedwait(_AWAITED, max(0.0, self._ask_at - time.monotonic()))
        else:
            # Forever: a poll would wake a process that stands as long as its pack runs.
            found = signal.sigwaitinfo(_AWAITED)
        if found is not None and found.si_signo != signal.SIGCHLD:
            self.hand_on(found.si_signo)

    def _note_node(self, pack: str, status: int) -> None:
        """Note the end of the step in which another node's runners were."""
        goes_on = False
        if self._ends_by is None:
            with _unblocked(), contextlib.suppress(Exception):
                goes_on = self._leave_node(pack)
        if not goes_on:
            self._worst = max(self._worst, os.waitstatus_to_exitcode(status) % 256)

    def _note_end(self, pid: int, pack: str, status: int) -> None:
        if not self._runners and not self._nodes:
            for handed_on in HANDED_ON:
                signal.signal(handed_on, signal.SIG_IGN)
        if not os.WIFSIGNALED(status):
            self._worst = max(self._worst, os.WEXITSTATUS(status))
            return
        self._killed_by = os.WTERMSIG(status)
        if self._ends_by is not None:
            return
        with _unblocked():
            self._follow_kill(pid, pack)

    def _follow_kill(self, pid: int, pack: str) -> None:
        """Do what is to be done about a runner that was killed."""
        # Whatever the runner had stopped is to hear what Slurm sends to it next.
        with contextlib.suppress(Exception):
            self._resume_paused(pack)
        self._read()
        deadline = time.monotonic() + FILES_WAIT_S
        for directory in self._files.get(pid, []):
            while os.path.lexists(directory) and time.monotonic() < deadline:
                time.sleep(_FILES_POLL_S)
        self._ask(pack, self._killed_by, time.time())

    def _ask_again(self) -> None:
        """Have Slurm asked once more, where that is due."""
        if not self._undecided or time.monotonic() < self._ask_at:
            return
        undecided, self._undecided = self._undecided, []
        with _unblocked():
            for pack, number, at in undecided:
                self._ask(pack, number, at)

    def _ask(self, pack: str, number: int, at: float) -> None:
        """Have Slurm asked to start a pack again, unless it is ending the job already."""
        if self._requeue is None or self._ends_by is not None:
            return
        # Whatever goes wrong with it, the job ends as it would without.
        with contextlib.suppress(Exception):
            answer = self._requeue(pack, number, at)
            if answer is None:
                self._undecided.append((pack, number, at))
                self._ask_at = time.monotonic() + ASK_AGAIN_S
            elif answer:
                # Slurm's TERM gives members the time to save what they have.
                self._ends_by = time.monotonic() + ORPHANS_WAIT_S
                self._undecided = []

    def _read(self) -> None:
        """Read what runners, and the starter, have said."""
        data = b""
        # All has been written. Its end is not waited for: another may hold the other side.
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_end, 65536):
                data += chunk
        for line in data.splitlines():
            word, pid, directory = line.split(b" ", 2)
            if word == b"runner":
                self._runners[int(pid)] = os.fsdecode(directory)
            elif word == b"node":
                self._nodes[int(pid)] = os.fsdecode(directory)
            else:
                self._files.setdefault(int(pid), []).append(os.fsdecode(directory))


@contextlib.contextmanager
def _unblocked() -> Iterator[None]:
    """For what starts programs, which would inherit what is blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)


def _adopt_orphans() -> None:
    """What a killed runner leaves comes to this process, which sees it end."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# ---- A pack whose runner was killed starts again, as it would after the loss of its node ---------
#
# The guard asks Slurm to requeue it, where Slurm itself would do so after a failure of the node.
# What Slurm is ending already it leaves to Slurm. Where the pack may not start again, members that
# live run to their ends, and its job ends with the last of them.

RESTARTS_MAX = 2
"""How often a pack starts again because of killed runners: what kills them may be in the pack."""


ASK_FOR_S = 600.0
"""How long Slurm is asked that does not answer, where no member lives; else as long as one does."""

ALL_ENDED = "all its members had ended"


class JobStanding(enum.Enum):
    """What Slurm makes of a pack whose runner was killed."""

    RUNS = "its job runs"
    ENDS = "its job is being ended, for whatever reason"
    ELSEWHERE = "a later attempt runs"


def judge_standing(fields: Mapping[str, str], restarts: int, now: float) -> JobStanding:
    """Judge the pack from `scontrol show job`; pure.

    Args:
        fields: The job's fields.
        restarts: Slurm's restart count when the runner began.
        now: Seconds since the epoch.
    """
    verdict = judge_pack(fields, restarts, "")
    # Slurm looks for jobs whose time is up every 30 s, and shows them as running until then.
    if verdict is None or not verdict.goes_on or _is_time_up(fields, now):
        return JobStanding.ENDS
    is_this = int(fields.get("Restarts", "0")) == restarts
    return JobStanding.RUNS if is_this else JobStanding.ELSEWHERE


def _is_time_up(fields: Mapping[str, str], now: float) -> bool:
    """Whether a job has run for as long as it may, or its end has been set to a moment before now.

    In autumn an hour comes twice, and the clock time of an end in it means the later one here.
    """
    with contextlib.suppress(KeyError, ValueError):
        used_s = parse_time_limit_s(fields["RunTime"])
        limit_s = parse_time_limit_s(fields["TimeLimit"])
        if used_s is not None and limit_s is not None and used_s >= limit_s:
            return True
    with contextlib.suppress(KeyError, OverflowError, ValueError):
        end = datetime.datetime.fromisoformat(fields["EndTime"])
        return now >= max(end.replace(fold=fold).timestamp() for fold in (0, 1))
    return False


def find_refusal(fields: Mapping[str, str], earlier: int, *, has_unfinished: bool) -> str:
    """Why a pack that Slurm shows running is not to be requeued; empty for nothing; pure.

    Args:
        fields: The job's fields.
        earlier: How often it was requeued for a killed runner before.
        has_unfinished: A member has not ended.
    """
    if not has_unfinished:
        return ALL_ENDED
    if fields.get("Requeue") != "1":
        return "it may not be requeued"
    if earlier >= RESTARTS_MAX:
        return f"it was restarted {earlier} times before"
    return ""


def requeue_pack(path: str, number: int, killed_at: float) -> bool | None:
    """Ask Slurm to requeue the pack of this job; see `KilledRunner.requeue`."""
    pack, allocation = Path(path), read_allocation(read_given_environment())
    try:
        return KilledRunner(pack, allocation, SlurmCommands(), number, killed_at).requeue()
    except (OSError, StateError) as error:
        if is_passing(error) and may_wait(pack, killed_at):
            return None
        raise


def may_wait(pack: Path, killed_at: float) -> bool:
    """Whether an answer is still to be waited for: members live, or it was not long ago."""
    return time.time() - killed_at < ASK_FOR_S or bool(list_wrappers(str(pack)))


class KilledRunner:
    """One killed runner.

    Args:
        pack: The pack's directory.
        allocation: What Slurm gave the runner.
        slurm: Slurm.
        number: The signal that it died of.
        killed_at: When, in seconds since the epoch.
    """

    def __init__(
        self,
        pack: Path,
        allocation: Allocation,
        slurm: SlurmAccess,
        number: int,
        killed_at: float,
    ) -> None:
        self._pack = pack
        self._job_id = allocation.job_id
        self._restarts = allocation.restarts
        self._slurm = slurm
        self._kill = RunnerKill(allocation.restarts, read_attempt(pack), number, killed_at)

    def requeue(self) -> bool | None:
        """Have the pack requeued, where it may be, and write down what came of it.

        Members that have ended meanwhile are known by what their wrappers have written: where none
        is left, nothing is to be asked any more.

        Returns:
            Slurm ends the job now, by this requeue or because it does anyway; None where it has
            not answered, and is to be asked again: members live, or it was not long ago. None, too,
            where it is refused and members live.

        Raises:
            StateError: It cannot be written down, so nothing was done.
        """
        known = read_kill(self._pack, self._restarts)
        if known is not None and known.refusal:
            return self._wait_for_members()
        has_unfinished = self._has_unfinished()
        try:
            fields = self._slurm.read_job(self._job_id)
        except SlurmError as error:
            if has_unfinished and may_wait(self._pack, self._kill.at):
                return None
            what = f"Slurm could not be asked to requeue it: {error.message}"
            return self._refuse(what if has_unfinished else ALL_ENDED)
        if fields is None:
            return self._refuse("Slurm does not know its job any more")
        asked_before = known is not None
        standing = self._judge(fields)
        if standing is not JobStanding.RUNS:
            if asked_before:
                self._note_answer(fields)
            return standing is JobStanding.ENDS
        kills = (kill for pack in self._list_sets() for kill in list_kills(pack))
        earlier = sum(not kill.refusal and kill.restarts != self._restarts for kill in kills)
        refusal = find_refusal(fields, earlier, has_unfinished=has_unfinished)
        if refusal:
            return self._refuse(refusal)
        # Before Slurm is asked: it counts, whatever becomes of this process.
        write_kill(self._pack, self._kill)
        return self._ask_slurm()

    def _ask_slurm(self) -> bool | None:
        problem = ""
        try:
            self._slurm.requeue_running(self._job_id)
        except SlurmNoAnswer as error:
            problem = error.message
        except SlurmError as error:
            return self._refuse(f"Slurm did not requeue it: {error.message}")
        try:
            fields = self._slurm.read_job(self._job_id)
        except SlurmError:
            # It may have been done, and then the next look shows it.
            return None
        if fields is not None and self._judge(fields) is JobStanding.RUNS:
            if problem and may_wait(self._pack, self._kill.at):
                return None
            return self._refuse(f"Slurm did not requeue it: {problem or 'it runs on'}")
        self._note_answer(fields)
        return True

    def _note_answer(self, fields: Mapping[str, str] | None) -> None:
        """Write down what came of a requeue that was asked for."""
        if fields is not None and int(fields.get("Restarts", "0")) <= self._restarts:
            # It was cancelled, or the like, between the two questions.
            forget_kill(self._pack, self._restarts)
        else:
            self._tell("")

    def _judge(self, fields: Mapping[str, str]) -> JobStanding:
        return judge_standing(fields, self._restarts, time.time())

    def _list_sets(self) -> list[Path]:
        """The packs of all GPU sets of the job: it starts again as one."""
        names: list[str] = []
        with contextlib.suppress(StateError):
            record = read_pack(self._pack)
            if record is not None:
                names = [n for n in list_gpu_set_packs(record) if n != record.pack_id]
        return [self._pack, *(self._pack.parent / name for name in names)]

    def _has_unfinished(self) -> bool:
        return any(self._is_unfinished(number) for number in list_members(self._pack))

    def _is_unfinished(self, number: int) -> bool:
        """Whether a member would start in the next attempt."""
        record = read_settled(
            self._pack, number, self._kill.attempt, starts_again=True, killed_at=self._kill.at
        )
        if record is not None and record.is_final:
            return False
        # Of one that was cancelled while it waited no state is written.
        is_cancelled = is_there(self._pack / "members" / format_number(number) / "cancelled")
        return not is_cancelled and not was_left(self._pack, number)

    def _refuse(self, refusal: str) -> bool | None:
        write_kill(self._pack, dataclasses.replace(self._kill, refusal=refusal))
        self._tell(refusal)
        return self._wait_for_members()

    def _wait_for_members(self) -> bool | None:
        """What a refusal comes to: nothing is to be done as long as a member lives."""
        return None if list_wrappers(str(self._pack)) else False

    def _tell(self, refusal: str) -> None:
        Journal(self._pack).write(
            "runner_killed", signal=self._kill.signal, requeued=not refusal, reason=refusal
        )


def find_killed_before(pack: Path, allocation: Allocation) -> RunnerKill | None:
    """The killed runner for which Slurm has restarted the job; None where it was not for one."""
    with contextlib.suppress(StateError):
        kill = read_kill(pack, allocation.restarts - 1)
        if kill is not None and not kill.refusal:
            return kill
    return None


def tell_of_restart(record: StateRecord, kill: RunnerKill) -> StateRecord:
    """A member's record with the reason why it starts again."""
    evidence = (*record.evidence, f"restarted: {kill}")
    return dataclasses.replace(
        record, reason=f"{kill}; it runs again", evidence=tuple(dict.fromkeys(evidence))
    )
