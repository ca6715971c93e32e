"""Waiting for the tiny job, reading what its node has written, and taking the job away again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_colloc.diagnosis.job_findings import JobOutcome, is_hopeless
from slurm_colloc.diagnosis.login_findings import NO_ASK_PROBLEM, AskProblem
from slurm_colloc.errors import CollocError, Interrupted, SlurmError
from slurm_colloc.model.examination import Examination
from slurm_colloc.report.words.waiting_reasons import describe_reason
from slurm_colloc.slurm.run_command import HeldInterrupts
from slurm_colloc.slurm.slurm_commands import SlurmCommands
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.record_files import build_record

_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
_HOPELESS_S = 10.0
_ANSWER_S = 30.0
_GONE_S = 10.0
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"})
_RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})

Tell = Callable[[str], None]


class DoctorJobWait:
    """Waits for the job, and never leaves it behind.

    Args:
        job_id: The job.
        place: Where its node answers.
        timeout_s: How long to wait.
        tell: Is told why it waits.
        held: Interrupts, which end the waiting.
    """

    def __init__(
        self, job_id: str, place: Path, timeout_s: float, tell: Tell, held: HeldInterrupts
    ) -> None:
        self._held = held
        self._job_id = job_id
        self._place = place
        self._timeout_s = timeout_s
        self._tell = tell
        self._slurm = SlurmCommands()
        self._fields: Mapping[str, str] | None = {}
        self._told = ""
        self._started = time.monotonic()

    def run(self) -> JobOutcome:
        """Wait for its end, or give up.

        Raises:
            Interrupted: The user pressed Ctrl-C; it is cancelled.
        """
        trouble = NO_ASK_PROBLEM
        is_over = False
        try:
            is_over = self._wait()
        except SlurmError as error:
            trouble = AskProblem(error.message, error.hint)
        # Ctrl-C on a terminal ends Slurm's command, too.
        if self._held.came() and not is_over:
            raise build_interrupted(self._slurm, self._job_id, self._held)
        if is_over:
            self._wait_for_answer()
        elif problem := cancel(self._slurm, self._job_id, self._held):
            trouble = AskProblem(
                f"job {self._job_id} could not be cancelled ({problem})",
                f"scancel {self._job_id} ends it, and Slurm does so after a few minutes",
            )
        return self._read(trouble, gave_up=not is_over)

    def _wait(self) -> bool:
        """True where it has ended, False where it takes too long."""
        pause_s = _FIRST_POLL_S
        hopeless_since: float | None = None
        while True:
            self._fields = self._slurm.read_job(self._job_id)
            state = (self._fields or {}).get("JobState", "")
            if state not in _WAITING | _RUNNING:
                return True
            now = time.monotonic()
            if self._held.came():
                return False
            reason = (self._fields or {}).get("Reason", "")
            if state != "PENDING" or not is_hopeless(reason):
                hopeless_since = None
            elif hopeless_since is None:
                hopeless_since = now
            if now - self._started > self._timeout_s or (
                hopeless_since is not None and now - hopeless_since > _HOPELESS_S
            ):
                return False
            self._say(state, reason)
            left_s = self._started + self._timeout_s - now
            time.sleep(max(0.01, min(pause_s, left_s)))
            pause_s = min(_LONGEST_POLL_S, pause_s * 1.3)

    def _say(self, state: str, reason: str) -> None:
        text = f"job {self._job_id} runs"
        if state in _WAITING:
            known = "" if reason in ("None", "(null)") else reason.replace("_", " ")
            text = f"job {self._job_id} waits: {describe_reason(known)}"
        if text != self._told:
            self._told = text
            self._tell(text)

    def _wait_for_answer(self) -> None:
        """A network file system may show it late."""
        exit_code = _parse_exit_code(self._fields)
        if exit_code not in (0, None):
            return
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline and not self._held.came():
            # Listing asks the server; a name that was not there is remembered for a while.
            if any(entry.name == "node.json" for entry in self._place.iterdir()):
                return
            time.sleep(_FIRST_POLL_S)

    def _read(self, trouble: AskProblem, *, gave_up: bool) -> JobOutcome:
        fields = self._fields or {}
        state = fields.get("JobState", "")
        seen: Examination | None = None
        errors = ""
        try:
            value = read_json(self._place / "node.json")
            seen = None if value is None else build_record(Examination, value)
        except (CollocError, ValueError) as error:
            errors = f"its answer is damaged ({error})"
        errors = errors or _read_last_line(self._place / "errors")
        node = fields.get("BatchHost", "") or _read_last_line(self._place / "node")
        return JobOutcome(
            job_id=self._job_id,
            trouble=trouble,
            state=state,
            reason=fields.get("Reason", ""),
            node=seen.node if seen else node,
            exit_code=_parse_exit_code(self._fields),
            took_s=time.monotonic() - self._started,
            gave_up=gave_up,
            wrote=(self._place / "node").exists(),
            python=_read_last_line(self._place / "python"),
            errors=errors,
            seen=seen,
        )


def build_interrupted(slurm: SlurmCommands, job_id: str, held: HeldInterrupts) -> Interrupted:
    """Cancel the job; what the user is told."""
    problem = cancel(slurm, job_id, held)
    if problem:
        return Interrupted(
            f"interrupted; job {job_id} could not be cancelled ({problem})",
            hint=f"scancel {job_id} ends it, and Slurm does so after a few minutes",
        )
    return Interrupted(f"interrupted; job {job_id} has been cancelled")


def cancel(slurm: SlurmCommands, job_id: str, held: HeldInterrupts) -> str:
    """Cancel the job and wait until nothing in it runs; another Ctrl-C ends the waiting.

    Returns:
        Why it could not be cancelled; empty if it was. Slurm then drops it by its deadline, or
        ends it at its time limit.
    """
    try:
        slurm.cancel(job_id)
    except SlurmError as error:
        return error.message
    pressed = held.count
    deadline = time.monotonic() + _GONE_S
    with contextlib.suppress(SlurmError):
        while time.monotonic() < deadline and held.count == pressed:
            fields = slurm.read_job(job_id)
            if fields is None or fields.get("JobState", "") not in _WAITING | _RUNNING:
                break
            time.sleep(_FIRST_POLL_S)
    return ""


def _parse_exit_code(fields: Mapping[str, str] | None) -> int | None:
    """`6:0` of ExitCode; None where Slurm has forgotten the job, or it died of a signal."""
    code, _, number = (fields or {}).get("ExitCode", "").partition(":")
    return int(code) if code.isdigit() and number in ("", "0") else None


def _read_last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
