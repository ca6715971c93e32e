"""Slurm over pyslurm where that answers alike, and over its commands for all else.

Also: whether pyslurm can be used here: found out in a child process, and remembered.

pyslurm calls the controller directly. What sbatch, scontrol and scancel do besides (option parsing,
cli_filter and SPANK plugins, TERM before KILL) it does not, so everything that changes something
stays with the commands. So do questions that are asked once in a call, where the import costs more
than a process. What is left is the question that waiting calls ask again and again: list_jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import SlurmError, SlurmUnreachable
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.records import build_record
from slurm_colloc.slurm.run_command import build_client_environment, build_slurm_error, run_slurm
from slurm_colloc.slurm.scontrol_records import format_span
from slurm_colloc.slurm.slurm_commands import (
    SlurmAccess,
    SlurmJob,
    compute_element_states,
    read_client_version,
)

FOREIGN_JOBS_MAX = 400
"""pyslurm can only ask for the jobs of all users, and each costs about 14 microseconds. With more
than these of others squeue is quicker, and easier on the controller, which chooses for it."""

JOB_FIELDS = ("id", "array_id", "array_task_id", "array_tasks_waiting", "user_id", "state",
              "state_reason", "run_time", "time_limit", "allocated_nodes", "comment")  # fmt: skip
"""What is read of a pyslurm.Job; the probe looks whether this pyslurm has it."""

_YEAR_S = 365 * 86400

_environment = threading.Lock()


class PyslurmAccess(SlurmAccess):
    """Slurm over pyslurm and its commands.

    Args:
        library: The module `pyslurm`. Import it only after `probe_pyslurm` has found that it
            can be:
            libslurm ends the whole process where there is no configuration.
        environment: Environment of the commands; None for the user's, filtered.
        uid: Whose jobs are listed; None for the caller's.
    """

    def __init__(
        self,
        library: Any,
        environment: Mapping[str, str] | None = None,
        *,
        uid: int | None = None,
    ) -> None:
        super().__init__(environment, uid=uid)
        self._library = library
        self._too_many = False

    def list_jobs(self) -> dict[str, SlurmJob]:
        """All jobs of the user that Slurm still shows, by id or element id; one question.

        What pyslurm calls an error is asked again over squeue, which says it in Slurm's words;
        only a controller that does not answer is not asked twice.
        """
        if self._too_many:
            return super().list_jobs()
        try:
            with _whole_task_lists():
                loaded = list(self._library.Jobs.load().values())
        except self._library.PyslurmError as error:
            problem = build_slurm_error(["pyslurm"], 1, str(error))
            if isinstance(problem, SlurmUnreachable):
                raise problem from error
            return super().list_jobs()
        user = os.getuid() if self._uid is None else self._uid
        own = [job for job in loaded if job.user_id == user]
        self._too_many = len(loaded) - len(own) > FOREIGN_JOBS_MAX
        return compute_element_states([build_job(job) for job in own])


@contextlib.contextmanager
def _whole_task_lists() -> Iterator[None]:
    # libslurm cuts the waiting tasks of an array after 64 characters unless told otherwise.
    name = "SLURM_BITSTR_LEN"
    with _environment:
        before = os.environ.get(name)
        os.environ[name] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def build_job(job: Any) -> SlurmJob:
    """A pyslurm.Job as squeue would show it; waiting tasks of an array stay folded."""
    used_s = job.run_time or 0
    reason = job.state_reason or ""
    return SlurmJob(
        job_id=_render_id(job),
        state=SlurmJobState.parse(job.state or ""),
        time_used=render_duration(used_s),
        time_left=_render_time_left(job.time_limit, used_s),
        nodes=job.allocated_nodes or "",
        reason="" if reason == "None" else reason,
        comment=job.comment or "",
    )


def _render_id(job: Any) -> str:
    if not job.array_id:
        return str(job.id)
    if job.array_task_id is not None:
        return f"{job.array_id}_{job.array_task_id}"
    if job.array_tasks_waiting:
        return f"{job.array_id}_[{job.array_tasks_waiting}]"
    # pyslurm 25.11 takes task 0 for no task. The only record that has none is what is left of an
    # array whose tasks were cancelled one by one before they started.
    never_started = (job.state or "").startswith("CANCELLED") and not job.allocated_nodes
    if job.id == job.array_id and never_started:
        return str(job.id)
    return f"{job.array_id}_0"


def _render_time_left(limit_min: int | str | None, used_s: int) -> str:
    if limit_min is None:
        return "NOT_SET"
    return limit_min if isinstance(limit_min, str) else render_duration(limit_min * 60 - used_s)


def render_duration(seconds: int) -> str:
    """Seconds as squeue prints them (_print_secs in its print.c): `1:02`, `1-02:03:04`."""
    if not 0 <= seconds <= _YEAR_S:
        return "INVALID"
    return format_span(seconds)


# ---- Whether pyslurm can be used here: found out in a child process, and remembered --------------
#
# `import pyslurm` ends the whole process where libslurm finds no configuration (its fatal() calls
# exit), so it is imported only after a child has done so.

PROBE_TIMEOUT_S = 20.0
REMEMBERED_S = 24 * 3600.0
"""How long an answer holds where nothing that it depends on has changed."""

_CONFIGURATION = "/etc/slurm/slurm.conf"

_CHILD = """
import json, sys
from importlib.metadata import version
found = {"pyslurm": version("pyslurm"), "slurm": "", "problem": ""}
try:
    import pyslurm
    missing = [name for name in sys.argv[1:] if not hasattr(pyslurm.Job, name)]
    if missing or not hasattr(pyslurm, "Jobs"):
        found["problem"] = "lacks what csub needs"
    else:
        found["slurm"] = pyslurm.slurmctld.Config.load().version
except ImportError as error:
    found["problem"] = f"cannot be loaded: {error}"
except AttributeError as error:
    found["problem"] = f"lacks what csub needs: {error}"
except pyslurm.PyslurmError as error:
    found["problem"] = f"gets no answer: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class PyslurmStatus:
    """What is known of pyslurm here.

    Attributes:
        pyslurm: Its version; empty where it is not installed.
        slurm: The version of the Slurm that runs, as the controller says it; empty where the
            question was not reached.
        problem: What is wrong with it, as a clause after its name; empty if nothing is.
    """

    pyslurm: str = ""
    slurm: str = ""
    problem: str = ""

    @property
    def usable(self) -> bool:
        """It imports, and its major release is the one that runs."""
        return not self.obstacle

    @property
    def obstacle(self) -> str:
        """Why it cannot be used, as a clause; empty if it can."""
        if not self.pyslurm:
            return "pyslurm is not installed"
        if self.problem:
            return f"pyslurm {self.pyslurm} {self.problem}"
        if parse_release(self.pyslurm) != parse_release(self.slurm):
            return f"pyslurm {self.pyslurm} does not match Slurm {self.slurm}"
        return ""


def parse_release(version: str) -> tuple[int, ...]:
    """The major release of a version of Slurm or pyslurm: `25.11.2` is (25, 11), `22.5.1` (22, 5).

    Empty for a text that is no version.
    """
    words = version.split(".")[:2]
    return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()


def find_pyslurm(environ: Mapping[str, str], memory: str) -> PyslurmStatus:
    """Say whether pyslurm can be used; costs next to nothing where it is not installed.

    Args:
        environ: The environment; SLURM_CONF and PATH are read.
        memory: Path of the file that remembers the answer; empty to remember nothing.
    """
    from importlib.util import find_spec

    spec = find_spec("pyslurm")
    if spec is None or not spec.origin:
        return PyslurmStatus()
    key = compute_key(environ, spec.origin)
    known = _recall(memory, key)
    if known is not None:
        return known
    finding, lasts = probe_pyslurm()
    if lasts and memory:
        _remember(memory, key, finding)
    return finding


def probe_pyslurm() -> tuple[PyslurmStatus, bool]:
    """Import pyslurm and ask the controller's version, both in a child process.

    Returns:
        The finding, and whether it will be the same next time: a controller that is down is not
        pyslurm's fault.
    """
    # The import path is this process's, whatever the environment says.
    environment = {
        **build_client_environment(os.environ),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    argv = [sys.executable, "-c", _CHILD, *JOB_FIELDS]
    try:
        answer = run_slurm(argv, environment=environment, timeout_s=PROBE_TIMEOUT_S)
        finding = build_record(PyslurmStatus, json.loads(answer.stdout.splitlines()[-1]))
    except SlurmError as error:
        lines = error.stderr.strip().splitlines()
        words = lines[-1].strip() if lines else error.message
        finding = PyslurmStatus(_read_version(), "", f"cannot be imported: {words}")
    except (ValueError, IndexError, TypeError):
        finding = PyslurmStatus(_read_version(), "", "does not answer in a child process")
    if finding.slurm:
        return finding, True
    # A libslurm of another release may get no answer at all; then the release is the reason.
    installed = ""
    with contextlib.suppress(SlurmError):
        installed = read_client_version()
    if installed and parse_release(installed) != parse_release(finding.pyslurm):
        return PyslurmStatus(finding.pyslurm, installed), True
    return finding, False


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyslurm")
    except PackageNotFoundError:
        return "of unknown version"


def compute_key(environ: Mapping[str, str], origin: str) -> list[Any]:
    """All that the answer depends on: Python, pyslurm, the configuration and Slurm's programs."""
    squeue = shutil.which("squeue", path=environ.get("PATH"))
    configuration = environ.get("SLURM_CONF", "")
    return [
        sys.executable,
        sys.version,
        origin,
        _stamp(origin),
        configuration,
        _stamp(configuration or _CONFIGURATION),
        squeue,
        _stamp(squeue or ""),
    ]


def _stamp(path: str) -> list[int]:
    try:
        found = Path(path).stat()
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size]


def _recall(memory: str, key: list[Any]) -> PyslurmStatus | None:
    try:
        kept = json.loads(Path(memory).read_text(encoding="utf-8"))
        if kept["key"] == key and 0 <= time.time() - kept["time"] < REMEMBERED_S:
            return build_record(PyslurmStatus, kept["finding"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _remember(memory: str, key: list[Any], finding: PyslurmStatus) -> None:
    """Keep an answer; where that fails the next call asks again."""
    kept = {"key": key, "time": time.time(), "finding": asdict(finding)}
    temporary = Path(f"{memory}.tmp{os.getpid()}-{os.uname().nodename[:32]}-{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # As all of the state, for its owner alone.
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        temporary.replace(memory)
