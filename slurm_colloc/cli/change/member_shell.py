"""`csub shell`: a command or a shell inside a running member."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

from slurm_colloc.cli.change.ask_runner import require_here
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session
from slurm_colloc.errors import NodeError, SlurmUnreachable, UsageProblem
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)


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
    if view.record.carried or record is None or record.started_at is None:
        raise UsageProblem(
            f"{name} cannot be entered: its pack shares no path with this machine",
            hint=f"srun --jobid={view.job_id} --overlap --pty bash enters its Slurm job",
        )
    if view.record.local:
        here = socket.gethostname().partition(".")[0]
        if record.node not in (None, here):
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
