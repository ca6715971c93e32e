"""The batch script's own process: the parent of the runners, which it outlives if one is killed.

Slurm ends all that a batch script has left in the moment in which its own process ends. So that
process is this one. It does nothing but hand on signals and wait. After a runner that died of a
signal it waits until the files of that pack's MPS daemon are gone, and has Slurm asked to start the
job again; then all members have their time to end, as at every requeue. Where that is refused, the
other runners of the job go on, and members of this one run to their ends. Where Slurm does not
answer it stands, its members run on, and it asks again.

A job with several GPU sets has a runner for each. What they need is loaded, and the job divided, by
the guard's only child, the starter: it forks the runners, names them to the guard, which adopts
them, and ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping

# A guard stands for as long as its pack runs: nothing is loaded for its types alone.
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

    def name_runners(self, packs: Mapping[int, str]) -> None:
        """Say, as the starter, which runners have come in its place.

        Args:
            packs: By process id the directory of each one's pack.
        """
        named = (b"runner %d %s\n" % (pid, os.fsencode(pack)) for pid, pack in packs.items())
        self._say(b"".join(named))

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line)


def stand_guard(
    pack: str = "",
    requeue: Requeue = lambda *_: False,
    resume_paused: ResumePaused = lambda _: None,
    *,
    has_starter: bool = False,
) -> GuardPipe:
    """Go on as a child of this process, which ends as the child does.

    Args:
        pack: The directory of the child's pack.
        requeue: What is to be done about a runner that was killed.
        resume_paused: Called after a runner that was killed.
        has_starter: The child is no runner but starts them, and ends once it has named them.

    Raises:
        OSError: There is no second process to be had.
    """
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
        guard = _Guard(child, pack, read_end, requeue, resume_paused)
        for number in HANDED_ON:
            signal.signal(number, guard.hand_on)
        if has_starter:
            guard.await_starter(child)
        guard.watch()
    os.close(read_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return GuardPipe(write_end)


def fork_keeping_signals() -> int:
    """os.fork, after which the child still hears what was sent to it before it ran.

    Python forgets in the child what has come until it looks (PyOS_AfterFork_Child); what is blocked
    stays with the kernel meanwhile.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Guard:
    """Waits for runners; see `stand_guard`."""

    def __init__(
        self,
        child: int,
        pack: str,
        read_end: int,
        requeue: Requeue,
        resume_paused: ResumePaused,
    ) -> None:
        self._runners = {child: pack}
        self._read_end = read_end
        self._requeue = requeue
        self._resume_paused = resume_paused
        self._files: dict[int, list[str]] = {}
        self._worst = 0
        self._killed_by = 0
        self._undecided: list[tuple[str, int, float]] = []
        """Of which killed runners Slurm has said nothing yet: what `Requeue` is told."""
        self._ask_at = 0.0
        self._ends_by: float | None = None
        """When what Slurm is ending is not waited for any longer; None while the job goes on."""

    def hand_on(self, number: int, _frame: object = None) -> None:
        """Give a signal to all runners; also a handler of it."""
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

    def watch(self) -> NoReturn:
        """Wait until all runners have ended, and end as the worst of them.

        Signals are blocked and waited for: a handler would not run for one that comes in the moment
        before a blocking call, until the next one comes.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        while self._runners or self._undecided or self._ends_by is not None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._undecided:
                    break
                pid = status = 0
            if pid in self._runners:
                self._note_end(pid, self._runners.pop(pid), status)
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

    def _note_end(self, pid: int, pack: str, status: int) -> None:
        if not self._runners:
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
        if self._ends_by is not None:
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
