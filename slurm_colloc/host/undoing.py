"""Undoing what was prepared for a job: from its checkpoint alone, as often as wanted; who: root.

Each step looks at what there is, so it does not matter at which step a prolog or an earlier epilog
was killed. The checkpoint goes last; while anything is left it stays, for the next hook.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from dataclasses import dataclass, field

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.boot import read_boot_id
from slurm_colloc.host.checkpoint import UNDOING, Checkpoint, RunDirectory
from slurm_colloc.host.control_groups import list_members, remove_groups
from slurm_colloc.host.directories import open_private_directory
from slurm_colloc.host.mps_leftovers import rebuild
from slurm_colloc.host.mps_options import StopReport
from slurm_colloc.host.mps_state import read_state
from slurm_colloc.host.mps_stop import stop_daemon
from slurm_colloc.host.nvml_answer import EXCLUSIVE_PROCESS, NvmlAnswer
from slurm_colloc.host.nvml_fork import NVML_S, ForkedQuestion, ask_nvml
from slurm_colloc.host.processes import (
    end_processes,
    identify,
    read_process,
    read_uid,
)

_LOCK_S = 2.0
_POLL_S = 0.01
_KILLS = ((signal.SIGKILL, 1.0), (signal.SIGKILL, 1.0))


@dataclass
class Undone:
    """How undoing went.

    Args:
        unsafe: Why the node is not fit for the next job; empty where it is.
        left: What could not be removed, with reasons.
        notes: What else is worth telling.
        restored: The compute modes that were set back, by UUID.
        gpus_checked: Whether NVML was read afterwards.
    """

    unsafe: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restored: dict[str, str] = field(default_factory=dict)
    gpus_checked: bool = False

    @property
    def is_complete(self) -> bool:
        """Nothing is left to do."""
        return not (self.unsafe or self.left)


class Undoing:
    """Undoes one job; the caller holds the job's lock.

    Args:
        run: Root's directory.
        checkpoint: The job's checkpoint.
        simulation: The directory of a simulated GPU; empty on a real node.
        node: Slurm's name of this node.
    """

    def __init__(
        self, run: RunDirectory, checkpoint: Checkpoint, *, simulation: str = "", node: str = ""
    ) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._place = (simulation, node)
        self._directory = f"{run.path}/{checkpoint.job_id}"
        self._is_of_this_boot = checkpoint.boot == read_boot_id()
        self.report = Undone()

    def undo(self) -> Undone:
        """Do all that can be done; what is left is told, and kept in the checkpoint."""
        checkpoint, report = self._checkpoint, self.report
        if checkpoint.phase != UNDOING:
            checkpoint = dataclasses.replace(checkpoint, phase=UNDOING)
            # On a full disk the checkpoint from before does as well.
            with contextlib.suppress(OSError):
                self._run.write(checkpoint)
        has_gpus = bool(checkpoint.gpus and (checkpoint.mode or checkpoint.compute_modes))
        # It gets ready while the daemons end.
        question = ask_nvml(*self._place) if has_gpus and self._is_of_this_boot else None
        try:
            for name in self._list_daemons():
                self._end_daemon(name)
            self._end_groups()
            if question is not None:
                self._check_gpus(question)
        finally:
            if question is not None:
                question.close()
        if not report.unsafe:
            report.left += self._run.remove_directory(checkpoint.job_id)
        if report.is_complete:
            self._run.remove(checkpoint.job_id)
        return report

    # -- processes ------------------------------------------------------------------------------

    def _list_daemons(self) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                found = {e.name for e in entries if e.is_dir(follow_symlinks=False)}
        except OSError:
            found = set()
        return sorted(found | set(self._checkpoint.daemons))

    def _end_daemon(self, name: str) -> None:
        path = f"{self._directory}/{name}"
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                directory = open_private_directory(path, prefix="")
                break
            except BlockingIOError:
                # A child that a killed prolog had just forked has the lock until its exec.
                if time.monotonic() > deadline:
                    self.report.left.append(f"{path}: another process holds it")
                    return
                time.sleep(_POLL_S)
            except FileNotFoundError:
                # Not there, or nothing had been started in it yet.
                return
            except (CollocError, OSError) as error:
                self.report.notes.append(f"{path}: {error}")
                return
        try:
            state = read_state(directory.descriptor)
        except StateError as error:
            self.report.notes.append(f"{path}: {error}")
            state = None
        if state is None or state.boot != read_boot_id():
            directory.close()
            return
        running = rebuild(directory, state, None)
        self._note_stop(stop_daemon(running, grace_s=0.0, asks_nvml=False, searches_all=True))

    def _note_stop(self, stop: StopReport) -> None:
        self.report.notes += stop.notes
        self.report.left += stop.left
        if stop.unkillable:
            pids = ", ".join(map(str, stop.unkillable))
            self.report.unsafe.append(f"processes that even SIGKILL does not end: {pids}")
        elif not stop.directory_removed and not stop.left:
            self.report.left.append("the MPS daemon has not ended")

    def _end_groups(self) -> None:
        groups = self._checkpoint.cgroups
        if not groups:
            return
        if self._is_of_this_boot:
            for group in groups:
                with (
                    contextlib.suppress(OSError),
                    open(f"{group}/cgroup.kill", "w", encoding="ascii") as file,
                ):
                    file.write("1")
            for process in end_processes(lambda: list_members(groups), _KILLS):
                self.report.unsafe.append(f"process {process.id.pid} ({process.name}) does not end")
        self.report.notes += remove_groups(groups)

    # -- GPUs -----------------------------------------------------------------------------------

    def _check_gpus(self, question: ForkedQuestion) -> None:
        """Set compute modes back, and see that nobody of the job's user hangs on its GPUs."""
        answer = question.ask(NVML_S)
        self._restore_modes(answer)
        problem = answer.problem or "; ".join(answer.doubts)
        for uuid in self._checkpoint.gpus:
            gpu = answer.find(uuid)
            if problem or gpu is None or gpu.processes is None:
                why = problem or "NVML does not show its processes"
                self.report.notes.append(f"{uuid} was not checked: {why}")
                return
            for listed in gpu.processes:
                self._judge_process(uuid, listed.pid)
        self.report.gpus_checked = True

    def _judge_process(self, uuid: str, pid: int) -> None:
        # NVML shows a process a moment longer than it lives.
        if identify(pid) is None or read_uid(pid) != self._checkpoint.uid:
            return
        process = read_process(pid)
        if process is not None and process.is_unkillable:
            self.report.unsafe.append(f"process {pid} cannot be killed and holds {uuid}")
        else:
            self.report.notes.append(f"process {pid} of the job's user is on {uuid}")

    def _restore_modes(self, answer: NvmlAnswer) -> None:
        wanted = self._checkpoint.compute_modes
        if not wanted:
            return
        if answer.problem:
            answer = ask_nvml(*self._place).ask(NVML_S)
        changes = {}
        for uuid, mode in wanted.items():
            gpu = answer.find(uuid)
            if gpu is None or gpu.compute_mode is None:
                why = answer.problem or "NVML does not show it"
                self.report.unsafe.append(f"the compute mode of {uuid} is not known: {why}")
            elif gpu.compute_mode == EXCLUSIVE_PROCESS != mode:
                changes[uuid] = mode
            elif gpu.compute_mode != mode:
                self.report.notes.append(
                    f"somebody else has set {uuid} to {gpu.compute_mode}: it was left so"
                )
        if not changes:
            return
        after = ask_nvml(*self._place, compute_modes=changes).ask(NVML_S)
        for uuid, mode in changes.items():
            gpu = after.find(uuid)
            if gpu is not None and gpu.compute_mode == mode:
                self.report.restored[uuid] = mode
            else:
                why = after.problem or "NVML did not take it"
                self.report.unsafe.append(f"{uuid} could not be set back to {mode}: {why}")
