"""The one tiny job of the doctor: submitted, waited for, read, and always taken away again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc import __version__
from slurm_colloc.diagnosis.doctor_job_wait import DoctorJobWait, Tell, build_interrupted
from slurm_colloc.diagnosis.job_findings import DoctorQuestion, JobOutcome
from slurm_colloc.diagnosis.login_findings import AskProblem
from slurm_colloc.errors import SlurmError, SlurmNoAnswer
from slurm_colloc.model.comment_token import Token, append_token
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts, hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmCommands
from slurm_colloc.store.atomic_files import make_directory, write_atomic, write_json
from slurm_colloc.submission.packs.batch_script import build_batch_environment, build_environment
from slurm_colloc.submission.packs.hook_token import join_constraint

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
        settings: The settings: it lies in the state directory, or, where nodes do not see that, in
            the directory of the call, as packs' logs do.
        number: What it is named after.

    Raises:
        StateError: It cannot be made.
    """
    if settings.state_shared:
        parent = settings.state_path / "doctor"
        sweep(parent)
        place = parent / number
    else:
        parent = None
        place = Path.cwd() / f".csub-doctor-{number}"
    make_directory(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if parent is not None:
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
        asked = dataclasses.replace(
            asked, place=str(settings.state_path if settings.state_shared else place.parent)
        )
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
            return JobOutcome(trouble=AskProblem(error.message, error.hint)), asked
        return DoctorJobWait(job_id, place, asked.timeout_s, tell, held).run(), asked


def _submit(script: Path, options: Sequence[str], mark: str, held: HeldInterrupts) -> str:
    """Submit; nothing stays where that fails.

    Raises:
        SlurmError: Slurm refuses or does not answer.
        Interrupted: The user pressed Ctrl-C meanwhile; the job is cancelled.
    """
    slurm = SlurmCommands()
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
