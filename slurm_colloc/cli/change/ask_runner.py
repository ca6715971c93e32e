"""Reaching the runner of a pack, wherever it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import (
    CollocError,
    SlurmError,
    SlurmUnreachable,
    StateError,
    UsageProblem,
)
from slurm_colloc.host.system.node_processes import ProcessId, is_alive
from slurm_colloc.model.member import Selection, SlurmJobState
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.store.pack.runner_process import is_of_another_host, read_runner


def wake_runner(session: Session, view: PackView, about: object) -> None:
    """Let a running pack's runner look at once; without it, it looks within a second.

    Args:
        session: The session.
        view: The pack.
        about: What is named where Slurm does not do it.
    """
    if view.record.local:
        signal_runner(session.state.pack_path(view.record.pack_id), signal.SIGURG)
    elif view.slurm_state is SlurmJobState.RUNNING:
        try:
            session.slurm.wake_batch_script(view.job_id)
        except SlurmError as error:
            note(f"{about}: {error}")


def signal_runner(path: Path, number: int) -> None:
    """Signal the runner of a pack without Slurm, if this is its machine and it still runs.

    Elsewhere it is not reached by a signal: it looks for requests within a second.
    """
    with contextlib.suppress(OSError, StateError):
        runner = read_runner(path)
        if runner is None or is_of_another_host(path):
            return
        if is_alive(ProcessId(runner.pid, runner.start_ticks)):
            os.kill(runner.pid, number)  # noqa: TID251 - its own


def require_here(session: Session, view: PackView) -> None:
    """See that a pack's Slurm job is one of this cluster: another may have a job of the same id.

    Raises:
        SlurmUnreachable: It is not known which cluster this is.
        UsageProblem: The job is one of another cluster, or it is not known of which.
    """
    if not view.is_elsewhere:
        return
    if not session.state.cluster:
        raise SlurmUnreachable(
            f"{view.shown_id}: cannot find out which cluster this is",
            hint="nothing was changed; try again when scontrol show config answers here",
        )
    raise UsageProblem(
        f"{view.shown_id} is a job of {view.where_to_ask}, and this is {session.state.cluster}",
        hint="call csub on one of its login nodes",
    )


def join_names(members: list[MemberView]) -> str:
    """`4711/1, 4711/2`."""
    return ", ".join(str(member.member) for member in members)


def tell_done(what: str, members: Iterable[MemberView]) -> None:
    """Say on a terminal what a command has done, as in `cancelled: 4711/1-4`."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    numbers: dict[str, set[int]] = {}
    for member in members:
        numbers.setdefault(member.member.job, set()).add(member.member.number)
    names = (str(Selection.of(job, chosen)) for job, chosen in numbers.items())
    if numbers:
        note(f"{what}: {', '.join(names)}")


class Problems:
    """What could not be done for some of the members; the others are gone on with."""

    def __init__(self) -> None:
        self._found: list[CollocError] = []

    @contextlib.contextmanager
    def noted(self, about: str = "") -> Iterator[None]:
        """Note what goes wrong in the body, once for each sentence, and go on.

        Args:
            about: What the sentence is to name; empty where it names it already.
        """
        try:
            yield
        except CollocError as problem:
            if about not in problem.message:
                problem.message = f"{about}: {problem.message}"
            if str(problem) not in map(str, self._found):
                self._found.append(problem)

    def settle(self) -> int:
        """The exit status: 0, or the first problem's; they are told.

        Raises:
            CollocError: There was one.
        """
        if len(self._found) == 1:
            raise self._found[0]
        for problem in self._found:
            note(f"error: {problem}")
        return self._found[0].exit_code if self._found else 0
