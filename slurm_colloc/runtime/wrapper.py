"""Runs inside a member's step, around the user's script: who: the user; where: compute node.

Started by path, not as a module, and imports the standard library only, so that it is up in a
few milliseconds. srun would answer 1 for an OOM kill and would overwrite CUDA_VISIBLE_DEVICES;
the wrapper gives the script exactly the environment it was handed and writes down how it ended.

    wrapper.py LAUNCH_FILE

The launch file (JSON, removed as soon as it was read, it holds the environment) says everything;
see runtime.launch.build_launch. Records are written beside it: PREFIX.started and PREFIX.exit.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import sys
import time

_WATCHED = (
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGALRM,
    signal.SIGCONT,
)
_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVER_GRACE_S = 2.0


def main(argv):
    """Run the member to its end; the exit status is the script's, 128 + signal for a signal."""
    path = argv[1]
    with open(path, "rb") as file:
        launch = json.load(file)
    os.unlink(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if launch["cpus"]:
        os.sched_setaffinity(0, launch["cpus"])
    oom_kills = read_oom_kills()
    environment = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in launch["environment"]
    }
    if launch["own_tmpdir"]:
        os.makedirs(launch["own_tmpdir"], mode=0o700, exist_ok=True)
    started_at = time.time()
    ready, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.read(ready, 1)
        os.close(ready)
        run_script(launch, environment)
    os.close(ready)
    write_record(
        launch["prefix"] + ".started",
        {
            "pid": child,
            "wrapper_pid": os.getpid(),
            "at": started_at,
            "step": os.environ.get("SLURM_STEP_ID") if launch["is_step"] else None,
            "cpus": sorted(os.sched_getaffinity(0)),
        },
    )
    # The script starts only now: whoever sees it running also finds its record.
    os.write(hold, b"\0")
    os.close(hold)
    status, foreign = wait_for(child, launch["runner_pid"], launch["kill_wait_s"])
    ended_at = time.time()
    end_leftovers()
    after = read_oom_kills()
    killed = None if after is None or oom_kills is None else after - oom_kills
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    write_record(
        launch["prefix"] + ".exit",
        {
            "wait_status": status,
            "started_at": started_at,
            "at": ended_at,
            "oom_kills": killed,
            "foreign_signals": foreign,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "host_memory_peak_kb": usage.ru_maxrss,
        },
    )
    if launch["own_tmpdir"]:
        shutil.rmtree(launch["own_tmpdir"], ignore_errors=True)
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def run_script(launch, environment):
    """In the child: become the script. Never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.setpgid(0, 0)
        os.umask(launch["umask"])
        directory = launch["directory"]
        note = ""
        try:
            os.chdir(directory)
        except OSError as error:
            # As slurmstepd does (22.05 to 26.05).
            note = f"error: couldn't chdir to `{directory}': {error.strerror}: going to /tmp instead\n"
            os.chdir("/tmp")
        redirect(launch)
        if note:
            os.write(2, note.encode())
        environment[b"SLURM_TASK_PID"] = str(os.getpid()).encode()
        argv = launch["argv"]
        try:
            os.execve(argv[0], argv, environment)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOEXEC):
                raise
            # The state may lie on a file system mounted noexec: do what the kernel would do.
            line = open(argv[0], "rb").readline()[2:].split(maxsplit=1)
            os.execve(line[0], [*(part.strip() for part in line), *argv], environment)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"csub: cannot start {launch['argv'][0]}: {error}\n".encode())
        os._exit(127 if getattr(error, "errno", 0) == errno.ENOENT else 126)


def redirect(launch):
    """Open the member's files as sbatch would: append unless --open-mode=truncate."""
    source = os.open(launch["input"] or "/dev/null", os.O_RDONLY)
    os.dup2(source, 0)
    if not launch["output"]:
        return
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if launch["truncate"] else os.O_APPEND)
    target = os.open(launch["output"], flags, 0o666)
    os.dup2(target, 1)
    if launch["error"] and launch["error"] != launch["output"]:
        target = os.open(launch["error"], flags, 0o666)
    os.dup2(target, 2)


def wait_for(child, runner_pid, kill_wait_s):
    """Wait for the script; pass on what the runner sends, note what others send.

    Slurm signals every process of a step by itself. The runner signals the wrapper alone, which
    passes it on: TERM to all processes of the member and KILL after kill_wait_s, other signals
    to the script.
    """
    foreign = []
    kill_at = None
    while True:
        timeout = 3600.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        info = signal.sigtimedwait(_WATCHED, timeout)
        if info is None:
            if kill_at is not None:
                signal_all(signal.SIGKILL)
                kill_at = time.monotonic() + 1.0
        elif info.si_signo != signal.SIGCHLD:
            if info.si_pid != runner_pid:
                foreign.append([int(info.si_signo), time.time()])
            elif info.si_signo == signal.SIGTERM:
                signal_all(signal.SIGCONT)
                signal_all(signal.SIGTERM)
                kill_at = time.monotonic() + kill_wait_s
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
        status = reap(child)
        if status is not None:
            return status, foreign


def reap(child):
    """Collect every ended descendant; the child's status once it is there."""
    status = None
    while True:
        try:
            pid, word = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = word


def list_descendants():
    """Process ids below this one; orphans stay below it because it is their reaper."""
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                todo += children
        except OSError:
            continue
    return found


def signal_all(number):
    """Send a signal to every process of the member but this one."""
    for pid in list_descendants():
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end_leftovers():
    """End what the script left running, as the end of a batch script does."""
    deadline = time.monotonic() + _LEFTOVER_GRACE_S
    signal_all(signal.SIGTERM)
    while list_descendants():
        signal.sigtimedwait((signal.SIGCHLD,), 0.05)
        reap(0)
        if time.monotonic() > deadline:
            signal_all(signal.SIGKILL)
            deadline = time.monotonic() + 0.5


def read_oom_kills():
    """OOM kills so far in this step's memory cgroup (v1 or v2); None where none can be read."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
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
            try:
                with open(f"{root}{group}/{name}") as file:
                    words = dict(line.split()[:2] for line in file if len(line.split()) >= 2)
            except OSError:
                continue
            if "oom_kill" in words:
                total = max(total or 0, int(words["oom_kill"]))
        if total is not None:
            return total
    return None


def write_record(path, value):
    """Write a small JSON file atomically."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="ascii") as file:
        json.dump(value, file)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
