"""What slurmd's hooks call: `python -I -B -m slurm_colloc.host.lifecycle COMMAND`; who: root.

    prolog    prepare what the job's comment asks for, within the site's policy
    epilog    undo what the checkpoint of the job says
    recover   undo what dead jobs have left, at boot
    status    say what there is, as JSON

A hook exits with 1 only where the node is not fit for the next job (or the policy is strict):
Slurm drains the node then. Every other fault is told to the job in setup.json and to the audit log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.audit import write_audit
from slurm_colloc.host.checkpoint import DEFAULT_RUN, READY, RunDirectory
from slurm_colloc.host.hook_job import HookJob, read_hook_job
from slurm_colloc.host.mps_control import read_peer
from slurm_colloc.host.mps_state import read_boot_id
from slurm_colloc.host.policy import DEFAULT_POLICY, Policy, read_policy
from slurm_colloc.host.recovering import Recovered, read_or_guess, recover
from slurm_colloc.host.undoing import NVML_S, Undoing, Undone, ask_nvml
from slurm_colloc.model.token import Token, parse_token

_EPILOG_LOCK_SHARE = 0.5
_PROLOG_LOCK_S = 2.0


class OutOfTime(BaseException):
    """The hook's own deadline, told by the kernel wherever it happens to be."""


@dataclass
class HookReport:
    """What a run of a hook did, for the audit log.

    Args:
        action: `prepared`, `told` (nothing is prepared, and the job knows why), `undone`, `none`.
        outcome: In words; empty for as it should be.
        mode: What is prepared.
        exit_status: Of the hook.
        details: What else is worth telling.
    """

    action: str = "none"
    outcome: str = ""
    mode: str = ""
    exit_status: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in whatever runs inside after so long."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Place:
    """Where the hooks of a node work.

    Args:
        run: Root's directory.
        policy: The policy's path.
        simulation: The directory of a simulated GPU; empty on a real node.
    """

    run: str = DEFAULT_RUN
    policy: str = DEFAULT_POLICY
    simulation: str = ""


# -- prolog ---------------------------------------------------------------------------------------


def run_prolog(place: Place, policy: Policy, job: HookJob) -> HookReport:
    """Prepare what a job asks for; what cannot be had is told to it."""
    token = parse_token(job.comment)
    if token is None or token.mode == "off":
        return HookReport(outcome="the comment asks for nothing")
    if not policy.enabled:
        return HookReport(outcome="switched off by the policy")
    try:
        run = RunDirectory(place.run, makes=True)
    except (CollocError, OSError) as error:
        return _fail(HookReport(outcome=f"{place.run} cannot be used: {error}"), policy)
    try:
        with run.locked_job(job.job_id, _PROLOG_LOCK_S):
            return _Prolog(place, policy, job, token, run).run()
    except TimeoutError:
        return _fail(HookReport(outcome="another hook is at work on this job"), policy)
    finally:
        run.close()


def _fail(report: HookReport, policy: Policy) -> HookReport:
    if policy.strict:
        report.exit_status = 1
    return report


class _Prolog:
    """One run of the prolog, with the job's lock held."""

    def __init__(
        self, place: Place, policy: Policy, job: HookJob, token: Token, run: RunDirectory
    ) -> None:
        from slurm_colloc.host.preparing import Preparing, find_parent_name

        self._place = place
        self._policy = policy
        self._job = job
        self._run = run
        self._ends_at = time.monotonic() + policy.deadline_s - policy.stop_s
        self._preparing = Preparing(
            run, policy, job, token, place.simulation, parent_name=find_parent_name()
        )
        self._report = HookReport()

    def run(self) -> HookReport:
        from slurm_colloc.host.preparing import Denied, is_prepared

        report = self._report
        try:
            with deadline(self._ends_at - time.monotonic()):
                known = self._run.read_quietly(self._job.job_id)
                if known is not None and is_prepared(self._run, known, self._job, read_boot_id()):
                    return HookReport("prepared", "it was prepared already", known.mode)
                self._prepare()
        except Denied as denied:
            self._fall_back(str(denied), is_fault=False)
        except (CollocError, OSError) as error:
            self._fall_back(error.message if isinstance(error, CollocError) else str(error))
        except OutOfTime:
            self._fall_back("the hook has run out of its time")
        report.details["figures"] = self._preparing.figures
        if self._preparing.notes:
            report.details["notes"] = self._preparing.notes
        return report

    def _prepare(self) -> None:
        from slurm_colloc.host.preparing import measure

        preparing, job, report = self._preparing, self._job, self._report
        started = time.monotonic()
        preparing.check()
        # NVML gets ready while the others are looked after.
        question = ask_nvml(self._place.simulation, job.node)
        try:
            self._undo_own()
            measure(preparing.figures, "before_nvml_ms", started)
            answer = question.ask(NVML_S)
        finally:
            question.close()
        measure(preparing.figures, "nvml_ms", started)
        preparing.choose_gpus(answer)
        self._recover(preparing.gpus)
        checkpoint = preparing.claim(answer)
        preparing.set_modes(checkpoint)
        daemons = preparing.start(checkpoint, lambda: self._ends_at - time.monotonic())
        preparing.tell(daemons, "the node's prolog has prepared MPS")
        import dataclasses

        self._run.write(dataclasses.replace(checkpoint, phase=READY))
        measure(preparing.figures, "total_ms", started)
        report.action, report.mode = "prepared", checkpoint.mode

    def _undo_own(self) -> None:
        """An earlier run for this job was killed, or its epilog never ran."""
        checkpoint, _ = read_or_guess(self._run, self._job.job_id)
        if checkpoint is None:
            return
        undone = Undoing(
            self._run, checkpoint, simulation=self._place.simulation, node=self._job.node
        ).undo()
        _note_undone(self._report, undone)
        if not undone.is_complete:
            raise StateError(
                f"what an earlier run for this job has left cannot be undone: "
                f"{'; '.join(undone.unsafe + undone.left)}"
            )

    def _recover(self, claimed: Sequence[str]) -> None:
        found = recover(
            self._run,
            besides=self._job.job_id,
            claimed=claimed,
            simulation=self._place.simulation,
            node=self._job.node,
        )
        told = [_describe_recovered(one) for one in found if one.report is not None]
        if told:
            self._report.details["recovered"] = told

    def _fall_back(self, reason: str, *, is_fault: bool = True) -> None:
        """Take back what was begun, and let the job know; it starts without."""
        report = self._report
        report.action, report.outcome = "told", reason
        if is_fault:
            _fail(report, self._policy)
        try:
            with deadline(self._policy.stop_s):
                checkpoint, _ = read_or_guess(self._run, self._job.job_id)
                if checkpoint is not None:
                    undone = Undoing(
                        self._run,
                        checkpoint,
                        simulation=self._place.simulation,
                        node=self._job.node,
                    ).undo()
                    _note_undone(report, undone)
                    if not undone.is_complete:
                        report.action = "none"
                        return
                self._preparing.compute_mode = None
                self._preparing.tell_nothing(reason)
        except OutOfTime:
            report.action = "none"
            report.details["not_told"] = "no time was left"
        except (CollocError, OSError) as error:
            # A full /run: without a word the job finds out by itself.
            report.action = "none"
            report.details["not_told"] = str(error)


# -- epilog ---------------------------------------------------------------------------------------


def run_epilog(place: Place, policy: Policy, job: HookJob) -> HookReport:
    """Undo what the checkpoint says; the job's number is all that is used of the job."""
    try:
        run = RunDirectory(place.run, makes=False)
    except FileNotFoundError:
        return HookReport(outcome="nothing was prepared")
    except (CollocError, OSError) as error:
        return HookReport(outcome=f"{place.run} cannot be used: {error}")
    report = HookReport()
    try:
        with (
            deadline(policy.deadline_s),
            run.locked_job(job.job_id, policy.deadline_s * _EPILOG_LOCK_SHARE),
        ):
            checkpoint, problem = read_or_guess(run, job.job_id)
            if checkpoint is None:
                run.remove(job.job_id)
                return HookReport(outcome="nothing was prepared")
            report.action, report.mode = "undone", checkpoint.mode
            if problem:
                report.details["problem"] = problem
            undone = Undoing(run, checkpoint, simulation=place.simulation, node=job.node).undo()
            _note_undone(report, undone)
            if undone.left:
                report.outcome = f"left for the next hook: {'; '.join(undone.left)}"
    except TimeoutError:
        report.outcome = "another hook is at work on this job"
    except OutOfTime:
        report.outcome = "the hook has run out of its time; the next one goes on"
        known = run.read_quietly(job.job_id)
        if known is not None and known.compute_modes:
            report.exit_status = 1
    finally:
        run.close()
    return report


def _note_undone(report: HookReport, undone: Undone) -> None:
    for name in ("unsafe", "left", "notes"):
        texts = getattr(undone, name)
        if texts:
            report.details[name] = texts
    if undone.restored:
        report.details["restored"] = undone.restored
    if undone.unsafe:
        report.exit_status = 1
        report.outcome = f"not fit for the next job: {'; '.join(undone.unsafe)}"


def _describe_recovered(found: Recovered) -> dict[str, Any]:
    report = found.report
    return {
        "job": found.job_id,
        "reason": found.reason,
        "undone": None if report is None else report.is_complete,
        "unsafe": [] if report is None else report.unsafe,
        "left": [] if report is None else report.left,
        "notes": [] if report is None else report.notes,
    }


# -- recover and status ---------------------------------------------------------------------------


def run_recover(place: Place, node: str) -> tuple[HookReport, list[dict[str, Any]]]:
    """Undo what dead jobs have left."""
    try:
        run = RunDirectory(place.run, makes=False)
    except FileNotFoundError:
        return HookReport(outcome="nothing was prepared"), []
    try:
        found = recover(run, simulation=place.simulation, node=node)
    finally:
        run.close()
    told = [_describe_recovered(one) for one in found]
    unsafe = [text for one in found if one.report for text in one.report.unsafe]
    report = HookReport("recovered", details={"jobs": told}, exit_status=1 if unsafe else 0)
    report.outcome = "; ".join(unsafe)
    return report, told


def build_status(place: Place) -> dict[str, Any]:
    """What root has prepared on this node now."""
    status: dict[str, Any] = {"schema": 1, "run_directory": place.run, "jobs": []}
    try:
        policy = read_policy(place.policy)
        status["policy"] = {"path": place.policy, "enabled": policy.enabled, "problem": ""}
    except StateError as error:
        status["policy"] = {"path": place.policy, "enabled": None, "problem": str(error)}
    try:
        run = RunDirectory(place.run, makes=False)
    except FileNotFoundError:
        return status
    try:
        for job_id in run.list_jobs():
            checkpoint, problem = read_or_guess(run, job_id)
            if checkpoint is None:
                continue
            peers = [read_peer(f"{run.path}/{job_id}/{name}/p") for name in checkpoint.daemons]
            status["jobs"].append(
                {
                    "job_id": job_id,
                    "uid": None if problem else checkpoint.uid,
                    "phase": checkpoint.phase,
                    "mode": checkpoint.mode,
                    "gpus": list(checkpoint.gpus),
                    "daemon_pids": [None if peer is None else peer.pid for peer in peers],
                    "is_of_this_boot": checkpoint.boot == read_boot_id(),
                    "problem": problem,
                }
            )
    finally:
        run.close()
    return status


# -- the command line -----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status of the hook."""
    parser = argparse.ArgumentParser(prog="slurm_colloc.host.lifecycle", description=__doc__)
    parser.add_argument("command", choices=("prolog", "epilog", "recover", "status"))
    parser.add_argument("--run-directory", default=DEFAULT_RUN)
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    options = parser.parse_args(argv)
    # From a constant line of the hook's script, never from the job.
    place = Place(options.run_directory, options.policy, os.environ.get("SIMGPU_ROOT", ""))
    try:
        if os.geteuid() != 0:
            raise StateError("this is for slurmd to call, as root")
        if options.command == "status":
            sys.stdout.write(json.dumps(build_status(place), indent=2) + "\n")
            return 0
        os.umask(0o077)
        os.chdir("/")
        if options.command == "recover":
            return _recover_and_tell(place)
        job = read_hook_job(os.environ)
    except (CollocError, OSError) as problem:
        sys.stderr.write(f"slurm_colloc: error: {problem}\n")
        return problem.exit_code if isinstance(problem, CollocError) else 1
    return _run_hook(options.command, place, job)


def _recover_and_tell(place: Place) -> int:
    started = time.monotonic()
    policy, problem = _read_policy(place)
    report, told = run_recover(place, os.environ.get("SLURMD_NODENAME", ""))
    if problem:
        report.details["policy"] = problem
    _audit(policy, "recover", None, report, started)
    sys.stdout.write(json.dumps({"schema": 1, "jobs": told}, indent=2) + "\n")
    return report.exit_status


def _run_hook(command: str, place: Place, job: HookJob) -> int:
    started = time.monotonic()
    # slurmd waits until nobody has its pipes any more, be it a child that hangs in the kernel.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    policy, problem = _read_policy(place)
    try:
        if command == "epilog":
            report = run_epilog(place, policy, job)
        elif problem:
            report = HookReport(outcome=problem)
        else:
            report = run_prolog(place, policy, job)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not drain the node
        report = HookReport(outcome=f"unforeseen: {type(error).__name__}: {error}")
    if problem:
        report.details["policy"] = problem
    if report.action != "none" or report.outcome != "nothing was prepared":
        _audit(policy, command, job, report, started)
    return report.exit_status


def _read_policy(place: Place) -> tuple[Policy, str]:
    """The policy, or the built-in one and why: an epilog undoes whatever became of the policy."""
    try:
        return read_policy(place.policy), ""
    except StateError as error:
        return Policy(enabled=False), str(error)


def _audit(
    policy: Policy, command: str, job: HookJob | None, report: HookReport, started: float
) -> None:
    entry: dict[str, Any] = {"hook": command}
    if job is not None:
        entry |= {"job": job.job_id, "uid": job.uid, "node": job.node}
    entry |= {
        "mode": report.mode,
        "action": report.action,
        "outcome": report.outcome,
        "ms": round((time.monotonic() - started) * 1000, 1),
        "exit": report.exit_status,
        **report.details,
    }
    write_audit(policy.audit_log, entry)


if __name__ == "__main__":
    sys.exit(main())
