"""`csub logs`: what members have written, one after the other or as it comes.

Also: `csub shell`: a command or a shell inside a running member.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import NodeError, NotFound, SlurmUnreachable, StateError, UsageProblem
from slurm_colloc.model.job import format_parameters
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
    find_output_owner,
    open_output,
    read_from,
)
from slurm_colloc.report.show_view import find_log_paths
from slurm_colloc.session.cancel_and_requeue import require_here
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, freeze, note, say

POLL_S = 0.3
STATE_POLL_S = 2.0
_BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogRequest:
    """How output is to be printed.

    Attributes:
        follow: Follow the output until the members have ended.
        error: Print the --error file instead.
        tail: The last lines alone; None for all.
        prefix: Begin each line with its member's name.
    """

    follow: bool = False
    error: bool = False
    tail: int | None = None
    prefix: bool = False


def print_logs(session: Session, choice: Choice, request: LogRequest) -> int:
    """Print the output of members, one after the other; with `follow` until they have ended.

    A member that is submitted again in another pack is followed there.

    Raises:
        NotFound: There is no such member, or a single one has no output yet.
    """
    found = session.survey(choice)
    chosen = [(view, member) for view, members in found for member in members]
    printer = LogPrinter(request, is_one=len(chosen) < 2)
    unreadable: dict[str, StateError] = {}
    asked_at = time.monotonic()
    while True:
        for view, member in chosen:
            try:
                printer.print_new(view, member)
            except StateError as problem:
                if len(chosen) == 1:
                    raise
                unreadable.setdefault(str(member.member), problem)
        sys.stdout.flush()
        if not request.follow:
            printer.end_lines()
            there = [pair for pair in chosen if str(pair[1].member) not in unreadable]
            _tell_missing(there, printer.offsets, error=request.error)
            return _tell_unreadable(unreadable)
        if all(member.is_final for _, member in chosen):
            printer.end_lines()
            return _tell_unreadable(unreadable)
        time.sleep(POLL_S)
        if time.monotonic() - asked_at >= STATE_POLL_S:
            asked_at = time.monotonic()
            found = session.survey(freeze(found))
            chosen = [(view, member) for view, members in found for member in members]


class LogPrinter:
    """Prints what is new in members' files.

    Args:
        request: How.
        is_one: There is one member, whose name goes without saying.

    Attributes:
        offsets: How far each member's file was printed, by its name.
    """

    def __init__(self, request: LogRequest, *, is_one: bool) -> None:
        self._request = request
        self._is_one = is_one
        self._shown = ""
        self._begun: dict[str, bytes] = {}
        self.offsets: dict[str, int] = {}

    def print_new(self, view: PackView, member: MemberView) -> None:
        """Print what a member has written since the last look."""
        name = str(member.member)
        path = find_path(view, member, error=self._request.error)
        owner = find_output_owner(member)
        if name not in self.offsets:
            self.offsets[name] = find_tail(path, self._request.tail, owner)
        for chunk in read_from(path, self.offsets[name], owner):
            if self._request.prefix:
                self._print_lines(name, chunk)
            else:
                self._print_head(member, path)
                sys.stdout.buffer.write(chunk)
            self.offsets[name] += len(chunk)

    def _print_head(self, member: MemberView, path: str) -> None:
        name = str(member.member)
        if self._is_one or self._shown == name:
            return
        gap = chr(10) if self._shown else ""
        told = " ".join(filter(None, (name, format_parameters(member.parameters), path)))
        say(f"{gap}==> {escape_controls(told)} <==")
        sys.stdout.flush()
        self._shown = name

    def _print_lines(self, name: str, chunk: bytes) -> None:
        lines = (self._begun.pop(name, b"") + chunk).split(b"\n")
        # The last one has no end yet.
        if lines[-1]:
            self._begun[name] = lines[-1]
        sys.stdout.flush()
        for line in lines[:-1]:
            sys.stdout.buffer.write(f"{name} | ".encode() + line + b"\n")

    def end_lines(self) -> None:
        """Print lines that will not go on."""
        for name, line in self._begun.items():
            sys.stdout.buffer.write(f"{name} | ".encode() + line + b"\n")
        self._begun.clear()
        sys.stdout.flush()


def find_tail(path: str, lines: int | None, owner: int | None = None) -> int:
    """Where the last lines of a file begin; 0 for all of it, and where it cannot be read.

    Args:
        path: The file.
        lines: How many; None for all.
        owner: See `find_output_owner`.

    Raises:
        StateError: It is of another user's member and not that user's file.
    """
    descriptor = None if lines is None else open_output(path, owner)
    if lines is None or descriptor is None:
        return 0
    try:
        position = size = os.fstat(descriptor).st_size
        # The line feed at the very end ends the last line, and begins none.
        wanted, end = lines, size - 1
        while position > 0:
            start = max(0, position - _BLOCK_BYTES)
            block = os.pread(descriptor, position - start, start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                if start + at == end:
                    continue
                wanted -= 1
                if wanted == 0:
                    return start + at + 1
            position = start
        return size if lines == 0 else 0
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def find_path(view: PackView, member: MemberView, *, error: bool) -> str:
    """The file that a member writes."""
    out, err = find_log_paths(view, member)
    return err if error and err is not None else out


def _tell_missing(
    chosen: Sequence[tuple[PackView, MemberView]], offsets: dict[str, int], *, error: bool
) -> None:
    for view, member in chosen:
        has_run = member.record is not None and member.record.started_at is not None
        path = find_path(view, member, error=error)
        if offsets[str(member.member)] or (has_run and Path(path).exists()):
            continue
        text = f"{member.member} is {member.state.value}: no output in {path}"
        if member.is_final:
            why = f" ({member.reason})" if member.reason else ""
            text, hint = f"{text}{why}", f"csub why {member.member} says more"
        else:
            text, hint = f"{text} yet", "csub logs -f waits for it"
        if len(chosen) == 1:
            raise NotFound(text, hint=hint)
        note(text)


def _tell_unreadable(unreadable: dict[str, StateError]) -> int:
    for name, problem in unreadable.items():
        note(f"error: {name}: {problem}")
    return StateError.exit_code if unreadable else 0


# ---- `csub shell`: a command or a shell inside a running member ----------------------------------


def enter(session: Session, target: str, command: Sequence[str]) -> int:
    """Become a shell, or a command, inside a member; returns only where that fails.

    Raises:
        UsageProblem: The member does not run, or cannot be entered from here.
        NotFound: There is no such member.
        SlurmUnreachable: There is no Slurm here.
    """
    view, member = find_running(session, target)
    record = member.record
    assert record is not None
    folder = member.files.path
    prefix = f"{folder}/run.{record.attempt}.{record.starts}"
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    python = session.settings.python
    argv = [python, "-IB", "-m", "slurm_colloc.runtime.programs.enter"]
    if on_terminal and os.environ.get("TERM"):
        argv.append(f"--term={os.environ['TERM']}")
    argv += [str(member.member), prefix, *command]
    sys.stdout.flush()
    if view.record.local:
        _become(argv, os.environ)
    job_id = find_numeric_job_id(session, view)
    step = build_step_argv(job_id, member, record.node or "", on_terminal=on_terminal, command=argv)
    _become(step, build_step_environment(os.environ))
    return 1


def find_running(session: Session, target: str) -> tuple[PackView, MemberView]:
    """The one running member that was named.

    Raises:
        UsageProblem: It is not one, does not run, or cannot be entered from here.
    """
    found = [(view, m) for view, members in session.survey(Choice.parse([target])) for m in members]
    running = [(view, m) for view, m in found if m.state is MemberState.RUNNING]
    if len(running) != 1:
        if len(found) == 1:
            member = found[0][1]
            raise UsageProblem(
                f"{member.member} is {member.state.value}: only a running member can be entered",
                hint=f"csub why {member.member}",
            )
        names = ", ".join(str(m.member) for _, m in running[:6])
        raise UsageProblem(
            f"{target} stands for {len(running)} running members",
            hint=f"name one of {names}" if names else "csub queue shows which members run",
        )
    view, member = running[0]
    _check_reach(session, view, member)
    return view, member


def _check_reach(session: Session, view: PackView, member: MemberView) -> None:
    name, record = member.member, member.record
    if view.record.local:
        here = socket.gethostname().partition(".")[0]
        if record is not None and record.node not in (None, here):
            raise UsageProblem(
                f"{name} runs on {record.node} without Slurm",
                hint=f"call csub shell on {record.node}",
            )
        return
    require_here(session, view)
    if session.unreachable is not None:
        raise session.unreachable
    if view.slurm_state is not SlurmJobState.RUNNING:
        state = view.slurm_state.value if view.slurm_state else "unknown"
        raise UsageProblem(f"{name} cannot be entered: its Slurm job is {state}")


def find_numeric_job_id(session: Session, view: PackView) -> str:
    """The id that srun takes: an element of an array has one of its own."""
    if not view.record.is_array:
        return view.job_id
    fields = session.slurm.read_job(view.job_id) or {}
    return fields.get("JobId", view.job_id)


def build_step_argv(
    job_id: str, member: MemberView, node: str, *, on_terminal: bool, command: Sequence[str]
) -> list[str]:
    """A step next to the member's, with its host memory limit; as in step_command.

    Without -c, --exact and --gres it sees all CPUs and GPUs of the job, and binds itself.
    """
    memory = member.spec.plan.host_memory_mb if member.record and member.record.step else None
    return [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        *([f"--nodelist={node}"] if node else []),
        *([f"--mem={memory}"] if memory else []),
        f"--job-name={member.member} shell",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=NONE",
        "--chdir=/",
        "--kill-on-bad-exit=0",
        "--pty" if on_terminal else "--quit-on-interrupt",
        *command,
    ]


def build_step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of that srun: nothing of a job that csub itself may run in."""
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SRUN_", "SLURMD_"))
    }


def _become(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        os.execvpe(argv[0], list(argv), dict(environment))
    except FileNotFoundError as error:
        if argv[0] != "srun":
            raise NodeError(
                f"there is no Python at {argv[0]}", hint="set node_python in the settings"
            ) from error
        raise SlurmUnreachable(
            "there is no Slurm here: srun is not installed or not in PATH",
            hint="call csub shell where srun works",
        ) from error
