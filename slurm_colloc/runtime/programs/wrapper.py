"""Runs inside a member's step, around the user's script: who: the user; where: compute node.

Started by path, not as a module, without site packages: it is up in milliseconds. srun
would answer 1 for an OOM kill and overwrite CUDA_VISIBLE_DEVICES; the wrapper gives the script
exactly the environment it was handed and writes down how it ended.

    wrapper.py LAUNCH_FILE

The launch file (JSON, removed as soon as it was read, it holds the environment) says everything:
runtime.step_command.build_launch. Next to it go PREFIX.started and PREFIX.exit.

Also: all processes below this one: collected, listed, signalled and ended; OOM kills of a member,
as the kernel counts them for its memory cgroup (v1 or v2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
import time

if __name__ == "__main__":
    # The package lies four directories up; -I keeps even this file's own off the path.
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    from slurm_colloc.process_name import name_process

    name_process("csub-member")

from slurm_colloc.runtime.programs.pause_lease import GOES_ON, LEASE_S, PAUSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WATCHED = (
    signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGQUIT, signal.SIGALRM, signal.SIGCONT, PAUSED, GOES_ON,
)  # fmt: skip
_LEASE = (PAUSED, GOES_ON)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
SCHEMA = 1
"""Of the files between a runner and this program, as of all others in the state."""

_PATIENCE_S = 60.0
_TOGETHER_S = 120.0


def main(argv: list[str]) -> int:
    """Run the member to its end; the exit status is the script's, 128 + signal for a signal."""
    launch = insist(lambda: load(argv[1]))
    with contextlib.suppress(OSError):
        os.unlink(argv[1])
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not launch["is_step"]:
        # Nothing else would end the member of a killed runner: its parent's end is a TERM from it.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != launch["runner_pid"]:
            return 1
    if launch["cpus"]:
        os.sched_setaffinity(0, launch["cpus"])
    oom_kills = read_oom_kills()
    environment = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in launch["environment"]
    }
    started_at = time.time()
    ready, hold = os.pipe()
    told, tell = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        places = make_places(launch, say)
        if os.read(ready, 1) != b"\0":
            # The wrapper could not say that it is up, and has said why.
            os._exit(126)
        os.close(ready)
        run_script(launch, environment, tell, places)
    os.close(ready)
    os.close(tell)
    os.close(say)
    write_record(
        launch["prefix"] + ".started",
        {
            "pid": child,
            "wrapper_pid": os.getpid(),
            "at": started_at,
            "step": os.environ.get("SLURM_STEP_ID") if launch["is_step"] else None,
            "cpus": sorted(os.sched_getaffinity(0)),
            "no_places": os.read(said, 4096).decode("utf-8", "replace"),
        },
    )
    # The script starts only now: a reader that sees it running also finds its record.
    os.write(hold, b"\0")
    os.close(hold)
    status, foreign, kill_at = wait_for(child, launch)
    ended_at = time.time()
    end_leftovers(kill_at)
    killed = count_oom_kills(oom_kills, read_oom_kills(), status, launch)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    write_record(
        launch["prefix"] + ".exit",
        {
            "wait_status": status,
            "started_at": started_at,
            "at": ended_at,
            "oom_kills": killed,
            "foreign_signals": foreign,
            "terminated": kill_at is not None,
            "problem": os.read(told, 4096).decode("utf-8", "replace"),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "host_memory_peak_kb": usage.ru_maxrss,
        },
    )
    if launch["own_tmpdir"]:
        # Only now: every waiting member would hold half a megabyte for it.
        import shutil

        sources = [source for _, _, source in (launch.get("places") or {}).get("directories", ())]
        for path in (launch["own_tmpdir"], *sources):
            shutil.rmtree(path, ignore_errors=True)
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def make_places(launch: dict[str, Any], say: int) -> tuple[int, ...]:
    """In the child: make its own /tmp, where it is to have one, or say through `say` why not."""
    places, problem = launch.get("places"), ""
    descriptors: tuple[int, ...] = ()
    if places:
        problem = places["refused"]
        try:
            if not problem:
                from slurm_colloc.runtime.programs.own_places import make_places as make

                make_own_directory(places["own"])
                descriptors = make(places)
        except OSError as error:
            problem = str(error)
        with contextlib.suppress(OSError):
            os.write(say, problem.encode("utf-8", "surrogateescape"))
        launch["no_places"] = problem
    os.close(say)
    return descriptors


def make_own_directory(path: str) -> None:
    """Make a directory, unless the runner has made it.

    Raises:
        OSError: It cannot be made, or something else is there.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        # Neither a link nor what another user has put there.
        if found.st_mode != stat.S_IFDIR | 0o700 or found.st_uid != os.getuid():
            raise


def run_script(
    launch: dict[str, Any],
    environment: dict[bytes, bytes],
    tell: int,
    places: tuple[int, ...] = (),
) -> None:
    """In the child: become the script, or say through `tell` why not. Never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        # Python ignores these two, and the script would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.umask(launch["umask"])
        directory = launch["directory"]
        note = ""
        try:
            os.chdir(directory)
        except OSError as error:
            # As slurmstepd does (22.05 to 26.05).
            note = (
                f"error: couldn't chdir to `{directory}': {error.strerror}: going to /tmp instead\n"
            )
            os.chdir("/tmp")
        if places and environment.get(b"TMPDIR") == os.fsencode(launch["own_tmpdir"]):
            environment[b"TMPDIR"] = os.fsencode(launch["places"]["tmpdir"])
        if launch.get("no_places"):
            note += f"csub: it shares /tmp with its neighbours: {launch['no_places']}\n"
        note += make_tmpdir(environment)
        redirect(launch)
        if launch["together"] > 1:
            note += wait_for_others(launch["prefix"], launch["together"])
        if note:
            os.write(2, note.encode("utf-8", "surrogateescape"))
        environment[b"SLURM_TASK_PID"] = str(os.getpid()).encode()
        if places:
            from slurm_colloc.runtime.programs.own_places import enter_places

            enter_places(places, os.getcwd())
        argv = launch["argv"]
        try:
            os.execve(argv[0], argv, environment)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOEXEC):
                raise
            # The state may lie on a file system mounted noexec: do what the kernel would do.
            with open(argv[0], "rb") as file:
                line = file.readline()[2:].split(maxsplit=1)
            os.execve(line[0], [*(part.strip() for part in line), *argv], environment)
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        text = str(error)
        if isinstance(error, OSError) and error.errno:
            text = f"{os.fsdecode(error.filename or '')}: {os.strerror(error.errno)}"
        problem = f"it could not be started: {text}".encode("utf-8", "surrogateescape")
        for descriptor, message in ((tell, problem), (2, b"csub: " + problem + b"\n")):
            with contextlib.suppress(OSError):
                os.write(descriptor, message)
        os._exit(127 if getattr(error, "errno", 0) == errno.ENOENT else 126)


def wait_for_others(prefix: str, count: int) -> str:
    """Wait until so many members of the pack are about to start; what went wrong, or ''.

    Each leaves a file for the pack's attempt, so one that starts again later waits for none.
    """
    member, _, run = prefix.rpartition("/")
    members, _, number = member.rpartition("/")
    folder = f"{os.path.dirname(members)}/together.{run.split('.')[1]}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        os.close(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT, 0o600))
        deadline = time.monotonic() + _TOGETHER_S
        while (there := len(os.listdir(folder))) < count:
            if time.monotonic() >= deadline:
                return (
                    f"csub: started after {_TOGETHER_S:.0f} s with {there} of {count} members that "
                    "were to start together\n"
                )
            time.sleep(0.02)
    except OSError as error:
        return f"csub: it does not start together with others: {error.strerror}\n"
    return ""


def make_tmpdir(environment: dict[bytes, bytes]) -> str:
    """Make the member's TMPDIR if it is missing, as slurmstepd does; what went wrong, or ''."""
    path = environment.get(b"TMPDIR")
    if path is None:
        return ""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return ""
    except OSError as error:
        environment[b"TMPDIR"] = b"/tmp"
        shown = path.decode("utf-8", "surrogateescape")
        return f"error: Unable to create TMPDIR [{shown}]: {error.strerror}: using /tmp instead\n"
    return ""


def redirect(launch: dict[str, Any]) -> None:
    """Open the member's files as sbatch would; the runner may add lines to what is truncated, too.

    They are named from the working directory even where that is missing, and then cannot be
    opened: slurmstepd fails there, too, instead of leaving the output in /tmp.
    """
    output, error, source = (
        launch[name] and os.path.join(launch["directory"], launch[name])
        for name in ("output", "error", "input")
    )
    if output:
        truncate = os.O_TRUNC if launch["truncate"] else 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncate
        os.dup2(target := os.open(output, flags, 0o666), 1)
        if error and os.path.normpath(error) != os.path.normpath(output):
            target = os.open(error, flags, 0o666)
        os.dup2(target, 2)
    # Last, so that the member's own file says what is wrong with it.
    os.dup2(os.open(source or "/dev/null", os.O_RDONLY), 0)


def wait_for(
    child: int, launch: dict[str, Any]
) -> tuple[int, list[tuple[int, float]], float | None]:
    """Wait for the script; pass on what the runner sends, note what others send.

    Slurm signals every process of a step by itself, or with proctrack/cgroup its task alone: this
    wrapper, which then passes it on to the script, as the script would have got it. The runner
    signals the wrapper alone: TERM goes to all processes of the member and KILL follows after
    kill_wait_s; other signals go to the script.

    Returns:
        The script's status, foreign signals with the time of the first of each, and when everything
        is to be killed (monotonic clock), where the runner has sent TERM.
    """
    foreign: list[tuple[int, float]] = []
    kill_at: float | None = None
    paused_until: float | None = None
    while True:
        due = [moment for moment in (kill_at, paused_until) if moment is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else 3600.0
        info = signal.sigtimedwait(_WATCHED, timeout)
        if info is None:
            now = time.monotonic()
            if kill_at is not None and now >= kill_at:
                signal_all(signal.SIGKILL)
                kill_at = now + 1.0
            if paused_until is not None and now >= paused_until:
                paused_until = None
                end_pause(launch)
        elif info.si_signo in _LEASE and info.si_pid == launch["runner_pid"]:
            paused_until = time.monotonic() + LEASE_S if info.si_signo == PAUSED else None
        elif info.si_signo != signal.SIGCHLD:
            is_runners = info.si_pid == launch["runner_pid"]
            note_foreign(foreign, info, launch)
            if is_runners and info.si_signo == signal.SIGTERM:
                # TERM first: a stopped process that goes on finds it waiting.
                signal_all(signal.SIGTERM)
                signal_all(signal.SIGCONT)
                kill_at = time.monotonic() + launch["kill_wait_s"]
            elif is_runners or launch["passes_on"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
        status = reap(child)
        if status is not None:
            # Slurm signals the processes of a step one after the other, and the script may have
            # heard of it first: that it ended with 0 then says nothing of its work.
            if (late := signal.sigtimedwait((signal.SIGTERM,), 0)) is not None:
                note_foreign(foreign, late, launch)
            return status, foreign, kill_at


def note_foreign(
    foreign: list[tuple[int, float]], info: signal.struct_siginfo, launch: dict[str, Any]
) -> None:
    """Note a signal that the runner has not sent.

    Each number once: a script may signal its parent every second, for weeks.
    """
    is_runners = info.si_pid == launch["runner_pid"]
    if not is_runners and all(number != info.si_signo for number, _ in foreign):
        foreign.append((int(info.si_signo), time.time()))


def end_pause(launch: dict[str, Any]) -> None:
    """Let the member go on: its runner has not renewed the pause."""
    signal_all(signal.SIGCONT)
    # Tasks of an srun in its script are not below this process. What finds them may lie on the very
    # file system that does not answer.
    with contextlib.suppress(Exception):
        from slurm_colloc.runtime.pause_members import continue_member

        folder = launch["prefix"].rpartition("/")[0]
        pack, number = folder.rpartition("/members/")[::2]
        continue_member(pack, int(number), os.getpid())


def load(path: str) -> Any:
    """Read a small JSON file of this version.

    Raises:
        ValueError: It is damaged, or is of another version.
    """
    with open(path, encoding="ascii") as file:
        value = json.load(file)
    if value["schema"] != SCHEMA:
        raise ValueError(f"{path} is of another version (schema {value['schema']})")
    return value


def write_record(path: str, value: dict[str, Any]) -> None:
    """Write a small JSON file atomically."""
    text = json.dumps({"schema": SCHEMA, **value})

    def write() -> None:
        with open(f"{path}.tmp", "w", encoding="ascii") as file:
            file.write(text)
        try:
            os.replace(f"{path}.tmp", path)
        except FileNotFoundError:
            # Of a rename that was done the answer may be lost, and a repeated one finds nothing.
            with open(path, encoding="ascii") as file:
                if file.read() != text:
                    raise

    insist(write)


def insist(act: Callable[[], Any]) -> Any:
    """Do something with a file; where the disk is full or the file system fails, try again."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return act()
        except OSError as error:
            # Where its directory is gone, so are all who would read it.
            if error.errno == errno.ENOENT or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


# ---- All processes below this one, which is the reaper of what it has started: also for `enter` --

_LEFTOVER_GRACE_S = 2.0
UNKILLABLE_S = 60.0
"""As slurm.conf(5), UnkillableStepTimeout: what hangs in the kernel for longer is left to it."""


def reap(child: int) -> int | None:
    """Collect every ended descendant; the child's status once it is there."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = ended[1]
    return status


def list_descendants() -> list[int]:
    """Process ids below this one; orphans stay below it because it is their reaper."""
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        tasks = []
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            # One that has ended meanwhile says nothing of the others.
            children = [int(word) for word in read(f"/proc/{pid}/task/{task}/children").split()]
            found += children
            todo += children
    return found


def signal_all(number: int) -> None:
    """Send a signal to every process of the member but this one.

    A TERM to an srun kills its step at once (srun(1), 22.05 to 26.05); the runner sends TERM to
    the tasks of such a step instead.
    """
    for pid in list_descendants():
        if number != signal.SIGTERM or read(f"/proc/{pid}/comm") != "srun\n":
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def read(path: str) -> str:
    """Read a small file of the kernel's; empty where there is none."""
    with contextlib.suppress(OSError), open(path, errors="surrogateescape") as file:
        return file.read()
    return ""


def end_leftovers(kill_at: float | None) -> None:
    """End what the script left running; where the member is being ended, KILL at `kill_at`.

    A process that no KILL ends, as on a file server that hangs, is not waited for for ever: how
    the script ended is to be told.
    """
    deadline = kill_at if kill_at is not None else time.monotonic() + _LEFTOVER_GRACE_S
    give_up_at = max(deadline, time.monotonic()) + UNKILLABLE_S
    signal_all(signal.SIGTERM)
    while list_descendants():
        signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        reap(0)
        now = time.monotonic()
        if now > give_up_at:
            return
        if now > deadline:
            signal_all(signal.SIGKILL)
            deadline = now + 0.5


# ---- OOM kills of a member, as the kernel counts them for its memory cgroup (v1 or v2) -----------


def count_oom_kills(
    before: tuple[int, bool] | None,
    after: tuple[int, bool] | None,
    status: int,
    launch: dict[str, Any],
) -> int | None:
    """The OOM kills of this member; None where none can be read.

    A memory cgroup that it shares, as plain processes do, counts those of its neighbours, too:
    there they are its own only where its script has died of KILL, or says so of what it ran.
    """
    if before is None or after is None:
        return None
    is_own = after[1] and not launch["shares_cgroup"]
    return after[0] - before[0] if is_own or status in (9, 137 << 8) else 0


def read_oom_kills() -> tuple[int, bool] | None:
    """OOM kills so far in this process's memory cgroup (v1 or v2); None where none can be read.

    Returns:
        The kills, and whether Slurm made the cgroup for this step.
    """
    lines = [line.split(":", 2) for line in read("/proc/self/cgroup").splitlines()]
    for hierarchy, controllers, path in lines:
        if "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        elif hierarchy == "0" and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            root, name = "/sys/fs/cgroup", "memory.events"
        else:
            continue
        # The limit may sit on this group (task_N) or on the step's above it.
        groups = [path, os.path.dirname(path)] if "/step_" in path else [path]
        total = None
        for group in groups:
            pairs = (line.split()[:2] for line in read(f"{root}{group}/{name}").splitlines())
            words = dict(pair for pair in pairs if len(pair) == 2)
            if "oom_kill" in words:
                total = max(total or 0, int(words["oom_kill"]))
        if total is not None:
            return total, "/step_" in path
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
