"""The one tiny job of the doctor: submitted, waited for, read, and always taken away again.

Also: waiting for the tiny job, reading what its node has written, and taking the job away again;
asks on the login node what diagnosis.login_findings judges.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc import __version__
from slurm_colloc.diagnosis.login_findings import (
    DoctorQuestion,
    JobOutcome,
    LoginFacts,
    is_hopeless,
    name_files,
)
from slurm_colloc.errors import (
    CollocError,
    Interrupted,
    SlurmError,
    SlurmNoAnswer,
    SlurmUnreachable,
    StateError,
)
from slurm_colloc.model.comment_token import Token, append_token
from slurm_colloc.model.examination import Examination
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.records import build_record
from slurm_colloc.report.waiting_reasons import describe_reason
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.settings_files import find_files
from slurm_colloc.slurm.choose_access import describe_access, open_slurm
from slurm_colloc.slurm.run_command import HeldInterrupts, hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmAccess, list_node_states, read_client_version
from slurm_colloc.store.all_packs import open_own_state
from slurm_colloc.store.atomic_files import make_directory, read_json, write_atomic, write_json
from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc.submission.packs.call_batches import join_constraint
from slurm_colloc.submission.packs.own_ids import ask_for_large_ids
from slurm_colloc.submission.packs.submit_batch import build_batch_environment, build_environment

# ----
# Waiting for the tiny job, reading what its node has written, and taking the job away again.

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
        self._slurm = SlurmAccess()
        self._fields: Mapping[str, str] | None = {}
        self._told = ""
        self._started = time.monotonic()

    def run(self) -> JobOutcome:
        """Wait for its end, or give up.

        Raises:
            Interrupted: The user pressed Ctrl-C; it is cancelled.
        """
        trouble: CollocError | None = None
        is_over = False
        try:
            is_over = self._wait()
        except SlurmError as error:
            trouble = error
        # Ctrl-C on a terminal ends Slurm's command, too.
        if self._held.came() and not is_over:
            raise build_interrupted(self._slurm, self._job_id, self._held)
        if is_over:
            self._wait_for_answer()
        elif problem := cancel(self._slurm, self._job_id, self._held):
            trouble = SlurmError(
                f"job {self._job_id} could not be cancelled ({problem})",
                hint=f"scancel {self._job_id} ends it, and Slurm does so after a few minutes",
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

    def _read(self, trouble: CollocError | None, *, gave_up: bool) -> JobOutcome:
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


def build_interrupted(slurm: SlurmAccess, job_id: str, held: HeldInterrupts) -> Interrupted:
    """Cancel the job; what the user is told."""
    problem = cancel(slurm, job_id, held)
    if problem:
        return Interrupted(
            f"interrupted; job {job_id} could not be cancelled ({problem})",
            hint=f"scancel {job_id} ends it, and Slurm does so after a few minutes",
        )
    return Interrupted(f"interrupted; job {job_id} has been cancelled")


def cancel(slurm: SlurmAccess, job_id: str, held: HeldInterrupts) -> str:
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


# ---- The one tiny job of the doctor: submitted, waited for, read, and always taken away again ----

TEMPLATE = "doctor.sbatch.j2"
MINUTES = 2
HOST_MEMORY_MB = 2048
"""A CUDA context of the MPS server takes some hundred MiB of host memory."""

_MARK = "[csub-doctor={number}]"
_OLD_S = 3600.0


def build_options(
    wanted: Mapping[str, str], gres: str, comment: str, timeout_s: float
) -> list[str]:
    """The options of sbatch; pure.

    Args:
        wanted: What the user said of the job: long names of sbatch's options, and values.
        gres: What to ask for; empty for nothing.
        comment: The job's comment.
        timeout_s: How long the job is waited for. Slurm drops one that has not started by then,
            also where csub was killed and could not cancel it.
    """
    options = [
        "--job-name=csub-doctor",
        f"--comment={comment}",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        f"--mem={HOST_MEMORY_MB}M",
        f"--time={MINUTES}",
        f"--deadline=now+{int(timeout_s) + 60 * MINUTES + 60}",
        "--no-requeue",
        "--output=/dev/null",
        "--chdir=/",
        "--export=ALL",
    ]
    options += [f"--gres={gres}"] if gres else []
    return options + [f"--{name}={value}" for name, value in wanted.items() if value]


def add_feature(wanted: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Look at a node with hooks where packs run on no other ones; pure."""
    options = dict(wanted)
    if settings.hooks == "always" and settings.hook_feature:
        joined = join_constraint(options.get("constraint", ""), settings.hook_feature)
        options["constraint"] = joined or options.get("constraint", "")
    return options


def render_script(place: str, settings: Settings) -> str:
    """The batch script, from templates/doctor.sbatch.j2."""
    environment = build_environment(settings.templates_dir)
    return environment.get_template(TEMPLATE).render(
        version=__version__, place=place, python=settings.python
    )


@contextlib.contextmanager
def make_place(settings: Settings, number: str) -> Iterator[Path]:
    """A directory in which the node writes its answer; gone afterwards.

    Args:
        settings: The settings: it lies in the state directory.
        number: What it is named after.

    Raises:
        StateError: It cannot be made.
    """
    parent = settings.state_path / "doctor"
    sweep(parent)
    place = parent / number
    make_directory(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()


def sweep(parent: Path) -> None:
    """Remove what calls that were killed have left."""
    with contextlib.suppress(OSError):
        for entry in list(parent.iterdir()):
            if time.time() - entry.stat().st_mtime > _OLD_S:
                shutil.rmtree(entry, ignore_errors=True)


def run_job(
    wanted: Mapping[str, str], gres: str, asked: DoctorQuestion, settings: Settings, tell: Tell
) -> tuple[JobOutcome, DoctorQuestion]:
    """Run the job and bring back what it has seen.

    Args:
        wanted: What the user asked for.
        gres: What to ask Slurm for.
        asked: What to find out; its place is filled in.
        settings: The settings.
        tell: Is told why the job waits, whenever that changes.

    Raises:
        StateError: There is no place for the answer.
        Interrupted: The user gave up; the job is cancelled.
    """
    number = os.urandom(6).hex()
    # From the first file to the last: an interrupt leaves neither files nor a job.
    with hold_interrupts() as held, make_place(settings, number) as place:
        asked = replace(asked, place=str(settings.state_path))
        write_json(place / "asked.json", {"gpus": asked.gpus})
        script = place / "job.sh"
        write_atomic(script, render_script(str(place), settings).encode(), 0o700)
        mark = _MARK.format(number=number)
        comment = mark
        if asked.gpus and settings.hooks != "never":
            comment = append_token(mark, Token("mps"))
            wanted = add_feature(wanted, settings)
        try:
            options = build_options(wanted, gres, comment, asked.timeout_s)
            job_id = _submit(script, options, mark, held)
        except SlurmError as error:
            return JobOutcome(trouble=error), asked
        return DoctorJobWait(job_id, place, asked.timeout_s, tell, held).run(), asked


def _submit(script: Path, options: Sequence[str], mark: str, held: HeldInterrupts) -> str:
    """Submit; nothing stays where that fails.

    Raises:
        SlurmError: Slurm refuses or does not answer.
        Interrupted: The user pressed Ctrl-C meanwhile; the job is cancelled.
    """
    slurm = SlurmAccess()
    try:
        job_id = slurm.submit(
            str(script),
            options,
            environment=build_batch_environment(os.environ),
            directory="/",
            held=held,
        )
    except SlurmNoAnswer:
        # It may have been submitted all the same.
        with contextlib.suppress(SlurmError):
            jobs = [job.job_id for job in slurm.list_jobs().values() if mark in job.comment]
            if jobs:
                slurm.cancel(*jobs)
        raise
    if held.came():
        raise build_interrupted(slurm, job_id, held)
    return job_id


# ---- Asks on the login node what diagnosis.login_findings judges ---------------------------------


def ask_login() -> tuple[LoginFacts, Settings]:
    """Ask everything; what fails is among the facts.

    Returns:
        The facts, and the settings; the built-in ones where they cannot be read.
    """
    facts = LoginFacts(__version__, platform.python_version(), sys.executable)
    settings = Settings()
    warnings: list[str] = []
    try:
        settings = load_settings(warn=warnings.append)
        files = find_files(os.environ)
        there = [path for path in (files.site, files.user) if path and Path(path).exists()]
        facts = replace(
            facts,
            settings_files=name_files(there, os.environ),
            settings_warnings=tuple(warnings),
            state_path=str(settings.state_path),
            state_trouble=try_state(settings),
            paces=tuple(read_paces(settings.state_path)),
            job_id=settings.job_id,
        )
    except CollocError as error:
        facts = replace(facts, settings_trouble=error)
    try:
        facts = replace(facts, client_version=read_client_version())
    except CollocError as error:
        return replace(facts, client_trouble=error), settings
    return ask_controller(facts, settings), settings


def try_state(settings: Settings) -> CollocError | None:
    """Write a file into the state directory; why that fails, or nothing."""
    path = settings.state_path
    try:
        open_own_state(path)
        make_directory(path)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"csub doctor\n")
            file.flush()
    except CollocError as error:
        return error
    except OSError as error:
        return StateError(f"{path} cannot be written: {os.strerror(error.errno or 0)}")
    return None


def ask_controller(facts: LoginFacts, settings: Settings) -> LoginFacts:
    """Ask the controller how it is set up, and which nodes it has."""
    started = time.monotonic()
    try:
        config = SlurmAccess().read_config()
        answer_ms = (time.monotonic() - started) * 1000
        facts = replace(facts, config=config, answer_ms=round(answer_ms, 1))
        facts = replace(facts, nodes=tuple(list_node_states()))
        facts = replace(facts, large_ids=ask_for_large_ids(SlurmAccess()))
    except CollocError as error:
        return replace(facts, config=None, controller_trouble=error)
    try:
        open_slurm(settings)
        facts = replace(facts, access=describe_access(settings))
    except SlurmUnreachable as error:
        facts = replace(facts, access_trouble=error)
    except CollocError as error:
        hint = "unset that variable, or give it one of these values"
        facts = replace(facts, access_trouble=SlurmError(error.message, hint=hint))
    return facts
