"""The installed hooks, run by root against a job that does not exist, and what they did.

Also: a job that does not exist, as slurmd would describe it to a hook; the lines that hooks leave,
read for people: one JSON value for each run of a hook.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from slurm_colloc.administration.node_files import NodeFile, read_constants
from slurm_colloc.errors import CollocError, NodeError, NotFound, StateError, UsageProblem
from slurm_colloc.host.hooks.node_policy import NodePolicy, read_policy
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer, build_nvml_environment, probe_gpus
from slurm_colloc.host.system.child_programs import run_program
from slurm_colloc.host.system.directories import open_trusted
from slurm_colloc.host.system.node_processes import ProcessId, identify, wait_until_ended
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.printable import align_columns

# ---- A job that does not exist, as slurmd would describe it to a hook; pure ----------------------

COMMENT = "csub admin verify [csub/1 mps]"
FIRST_JOB_ID = 4_000_000_000
"""Slurm's own ids end at 67,108,863 (slurm.conf(5), MaxJobId), so no real job is hit."""


@dataclass(frozen=True)
class FakeJob:
    """What the hooks are told.

    Args:
        job_id: Its number.
        uid: Whose it would be.
        gid: That user's group.
        user: The user's name.
        gpu: The GPU it would have.
        partition: Its partition.
        account: Its account.
        node: Slurm's name of this node.
    """

    job_id: str
    uid: int
    gid: int
    user: str
    gpu: Gpu
    partition: str
    account: str
    node: str


def choose_gpu(answer: NvmlAnswer, wanted: int | None, held: Collection[str]) -> Gpu:
    """Find a GPU that no process uses.

    Args:
        answer: What NVML says.
        wanted: N of /dev/nvidiaN; None for the first that is idle.
        held: UUIDs of GPUs that jobs have prepared.

    Raises:
        NodeError: There is none, or it cannot be told.
        UsageProblem: The one that is wanted is not there.
    """
    if answer.problem:
        raise NodeError(answer.problem, hint="without NVML the hooks prepare nothing")
    gpus = [gpu for gpu in answer.gpus if wanted is None or gpu.minor_number == wanted]
    if not gpus:
        raise UsageProblem(
            f"there is no GPU {wanted} here" if wanted is not None else "there is no GPU here",
            hint="--gpu takes N of /dev/nvidiaN",
        )
    reasons = []
    for gpu in gpus:
        reason = _find_use(gpu, held)
        if not reason:
            return gpu
        reasons.append(f"/dev/nvidia{gpu.minor_number}: {reason}")
    raise NodeError(
        f"no GPU is idle ({'; '.join(reasons)})", hint="drain the node, or name one with --gpu"
    )


def _find_use(gpu: Gpu, held: Collection[str]) -> str:
    """Why a GPU cannot be tried on; empty where it can."""
    if gpu.uuid is None or gpu.minor_number is None:
        return "NVML does not say which it is"
    if gpu.uuid in held:
        return "prepared for a job"
    if gpu.processes is None:
        return "NVML does not say who uses it"
    return f"used by process {gpu.processes[0].pid}" if gpu.processes else ""


def build_hook_environment(job: FakeJob, comment: str = COMMENT) -> dict[str, str]:
    """The variables of a prolog, without PATH, as slurmd gives them."""
    index = str(job.gpu.minor_number)
    return {
        "SLURM_JOB_ID": job.job_id,
        "SLURM_JOBID": job.job_id,
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_JOB_GID": str(job.gid),
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_ACCOUNT": job.account,
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_GPUS": index,
        "CUDA_VISIBLE_DEVICES": index,
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURMD_NODENAME": job.node,
        "SLURM_CLUSTER_NAME": "csub-admin-verify",
    }


def describe_gpu(gpu: Gpu | None) -> dict[str, object]:
    """What of a GPU's state a job must leave as it was."""
    if gpu is None:
        return {}
    return {
        "uuid": gpu.uuid,
        "compute_mode": gpu.compute_mode,
        "mig_enabled": gpu.mig_enabled,
        "processes": None if gpu.processes is None else sorted(p.pid for p in gpu.processes),
        "gpu_memory_used_mb": gpu.gpu_memory_used_mb,
    }


def find_differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What a job has changed; memory in use is the driver's own and moves by itself."""
    return [
        f"{name} was {before[name]}, is {after.get(name)}"
        for name in before
        if name != "gpu_memory_used_mb" and after.get(name) != before[name]
    ]


# ---- The lines that hooks leave, read for people: one JSON value for each run of a hook ----------

_ROTATED = re.compile(r"\.(\d+)(?:\.gz)?$")
COLUMNS = ("time", "hook", "job", "uid", "mode", "action", "ms", "exit", "outcome")
OUTCOMES = ("ok", "problem", "failed", "prepared", "told", "undone", "none")
"""`ok` and `problem`: whether all went as it should; `failed`: Slurm was told that the node is not
fit for jobs; the rest: what the hook did, `told` where nothing could be prepared."""


@dataclass(frozen=True)
class AuditFilter:
    """Which lines are wanted; None for all.

    Args:
        job: A job id.
        uid: A user.
        outcome: One of OUTCOMES.
        hook: prolog, epilog or recover.
    """

    job: str | None = None
    uid: int | None = None
    outcome: str | None = None
    hook: str | None = None

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """A line is wanted."""
        wanted = {"job": self.job, "uid": self.uid, "hook": self.hook}
        return self._matches_outcome(entry) and all(
            value is None or str(entry.get(name)) == str(value) for name, value in wanted.items()
        )

    def _matches_outcome(self, entry: Mapping[str, Any]) -> bool:
        if self.outcome == "failed":
            return bool(entry.get("exit"))
        if self.outcome in ("ok", "problem"):
            return is_ok(entry) == (self.outcome == "ok")
        return self.outcome is None or entry.get("action") == self.outcome


def is_ok(entry: Mapping[str, Any]) -> bool:
    """All went as it should: nothing is said, and nothing was reported to Slurm."""
    return not entry.get("outcome") and not entry.get("exit")


def describe_entry(entry: Mapping[str, Any]) -> str:
    """One run of a hook in a few words."""
    words = f"{entry.get('hook')}: {entry.get('action')}"
    return words if is_ok(entry) else f"{words}, {entry.get('outcome') or 'failed'}"


def list_log_files(path: str) -> list[str]:
    """The log and its rotated parts, oldest first."""
    rotated = []
    for name in glob.glob(f"{glob.escape(path)}.*"):
        match = _ROTATED.search(name)
        if match and _ROTATED.sub("", name) == path:
            rotated.append((int(match[1]), name))
    files = [name for _, name in sorted(rotated, reverse=True)]
    return [*files, path] if os.path.lexists(path) else files


def read_entries(path: str, wanted: AuditFilter) -> tuple[list[dict[str, Any]], int]:
    """Read the log.

    Args:
        path: The newest file.
        wanted: Which lines.

    Returns:
        The lines, oldest first, and how many could not be read.

    Raises:
        NotFound: There is no log yet.
        StateError: It cannot be read.
    """
    files = list_log_files(path)
    if not files:
        raise NotFound(
            f"there is no log at {path}", hint="it begins with the first job that asks for MPS"
        )
    entries, damaged = [], 0
    for name in files:
        for line in _read_lines(name):
            entry = parse_entry(line)
            if entry is None:
                damaged += 1
            elif wanted.matches(entry):
                entries.append(entry)
    return entries, damaged


def _read_lines(name: str) -> Iterator[str]:
    opener: Any = gzip.open if name.endswith(".gz") else open
    try:
        with opener(name, "rt", encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.strip())
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "only root and its group may" if isinstance(error, PermissionError) else ""
        raise StateError(f"cannot read {name}: {reason}", hint=hint) from error


def parse_entry(line: str) -> dict[str, Any] | None:
    """Read one line; None where it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_user(text: str) -> int:
    """A user's number, by number or name.

    Raises:
        UsageProblem: There is no such user.
    """
    if text.isdigit():
        return int(text)
    import pwd

    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise UsageProblem(f"there is no user {text!r} on this machine") from None


def render_entries(entries: Iterable[Mapping[str, Any]]) -> str:
    """Lines for people; what a line lacks is a hyphen."""
    rows = [[name.upper() for name in COLUMNS]]
    rows += [
        [*(_show(entry.get(name)) for name in COLUMNS[:-1]), _show(entry.get("outcome") or "ok")]
        for entry in entries
    ]
    return "".join(f"{line}\n" for line in align_columns(rows))


def _show(value: Any) -> str:
    """One cell: no line break or escape sequence of a user's text reaches the terminal."""
    if value in (None, ""):
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# ---- The installed hooks, run by root against a job that does not exist, and what they did -------

HOOK_LIMIT_S = 90.0
_NVML_LIMIT_S = 60.0
_PYTHON_LIMIT_S = 30.0
_GONE_S = 5.0
_FOREIGN_COMMENT = "another user's own words"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name: What.
        outcome: `ok`, `note` or `failed`.
        detail: What was found.
    """

    name: str
    outcome: str
    detail: str


@dataclass
class Verification:
    """A verification as it goes on.

    Args:
        prolog: The installed prolog.
        epilog: The installed epilog.
        checks: What was found so far.
    """

    prolog: str
    epilog: str
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Nothing failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def add(self, name: str, ok: bool | None, detail: str) -> None:
        """Remember a finding; None for a note."""
        outcome = "note" if ok is None else ("ok" if ok else "failed")
        self.checks.append(Check(name, outcome, detail))


def check_files(found: Verification, files: list[NodeFile]) -> None:
    """Every installed file is what it should be, and root's alone."""
    for file in files:
        if file.content is None:
            continue
        problem = _find_file_problem(file)
        found.add("file", not problem, problem or f"{file.path} is root's, mode {file.mode:o}")


def _find_file_problem(file: NodeFile) -> str:
    try:
        os.close(open_trusted(os.path.realpath(os.path.dirname(file.path))))
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NodeError as problem:
        return problem.message
    except OSError as error:
        return f"{file.path}: {os.strerror(error.errno or 0)}"
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return f"{file.path} is not a file that only root can write"
        if file.is_kept:
            return ""
        if stat.S_IMODE(status.st_mode) != file.mode:
            return f"{file.path} has mode {stat.S_IMODE(status.st_mode):o}, not {file.mode:o}"
        if opened.read() != (file.content or "").encode():
            return f"{file.path} is not what this version installs"
    return ""


def check_python(found: Verification, prefix: str) -> None:
    """The nodes' interpreter runs, is its own, and finds the program that the hooks start."""
    problem, told = _try_python(prefix)
    found.add("python", not problem, problem or told)


def _try_python(prefix: str) -> tuple[str, str]:
    """What is wrong with an interpreter, empty for nothing, and what it is."""
    python = f"{prefix}/bin/python"
    if exposed := find_exposed(prefix):
        return f"{exposed} can be changed by others than root", ""
    code = (
        "import sys, slurm_colloc, slurm_colloc.host.lifecycle as l; "
        "import slurm_colloc.host.hooks.prolog, slurm_colloc.host.hooks.epilog; "
        "print(slurm_colloc.__version__, '%d.%d.%d' % sys.version_info[:3], l.__file__)"
    )
    try:
        os.close(open_trusted(os.path.realpath(f"{prefix}/bin")))
        ended = run_program(
            [python, "-I", "-B", "-c", code],
            build_nvml_environment("", ""),
            timeout_s=_PYTHON_LIMIT_S,
        )
    except NodeError as problem:
        return problem.message, ""
    except OSError as error:
        return f"{python}: {os.strerror(error.errno or 0)}", ""
    if ended.returncode != 0:
        words = (ended.stderr.strip().splitlines() or [ended.problem or "it failed"])[-1]
        return f"{python}: {words}", ""
    version, release, module = ended.stdout.split(maxsplit=2)
    return "", f"{release} with slurm_colloc {version} ({module.strip()})"


def find_exposed(directory: str) -> str:
    """The first file or directory of a tree that anyone but root could change; or empty."""
    for folder, folders, files in os.walk(directory):
        for name in (".", *folders, *files):
            path = os.path.normpath(os.path.join(folder, name))
            status = os.lstat(path)
            is_link = stat.S_ISLNK(status.st_mode)
            if status.st_uid != 0 or (status.st_mode & 0o022 and not is_link):
                return path
    return ""


def check_policy(found: Verification, path: str) -> NodePolicy | None:
    """The policy can be trusted, and allows MPS."""
    try:
        policy = read_policy(path)
    except CollocError as problem:
        found.add("policy", ok=False, detail=str(problem))
        return None
    if not policy.enabled:
        found.add("policy", ok=False, detail=f"{path} says enabled = false: prologs do nothing")
    elif "mps" not in policy.modes:
        found.add("policy", ok=False, detail=f"{path} does not allow mps")
    else:
        found.add("policy", ok=True, detail=f"{path} allows {', '.join(policy.modes)}")
    for told in policy.ignored:
        found.add("policy", ok=None, detail=f"{path}: {told}")
    return policy


def ask_nvml(prefix: str, driver: str) -> NvmlAnswer:
    """Ask NVML as the hooks do: with the nodes' interpreter and a clean environment."""
    return probe_gpus(
        _NVML_LIMIT_S, python=f"{prefix}/bin/python", environ=build_nvml_environment(driver, "")
    )


def read_held_gpus(run: str) -> set[str]:
    """UUIDs of the GPUs that jobs have prepared now."""
    held: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(f"{run}/jobs") as entries:
        for entry in entries:
            with (
                contextlib.suppress(OSError, ValueError, KeyError, TypeError),
                open(entry.path, encoding="ascii") as file,
            ):
                held |= set(json.load(file)["gpus"])
    return held


def try_hooks(found: Verification, job: FakeJob, policy: NodePolicy, prefix: str) -> None:
    """Run prolog and epilog for a job that does not exist, and look at what each did."""
    with open(found.prolog, encoding="utf-8") as file:
        constants = read_constants(file.read())
    run, driver = constants.get("run", ""), constants.get("driver", "")
    before = describe_gpu(ask_nvml(prefix, driver).find(str(job.gpu.uuid)))
    found.add("GPU before", ok=None, detail=render_gpu(before))
    _run_hook(found, "prolog of a job that is not ours", found.prolog, job, _FOREIGN_COMMENT)
    if os.path.lexists(f"{run}/{job.job_id}") or os.path.lexists(f"{run}/jobs/{job.job_id}.json"):
        found.add("prolog of a job that is not ours", ok=False, detail="it prepared something")
    daemons: list[ProcessId] = []
    try:
        if _run_hook(found, "prolog", found.prolog, job):
            daemons = _check_setup(found, f"{run}/{job.job_id}/setup.json", job)
            during = describe_gpu(ask_nvml(prefix, driver).find(str(job.gpu.uuid)))
            found.add("GPU during", ok=None, detail=render_gpu(during))
    finally:
        _run_hook(found, "epilog", found.epilog, job)
        left = wait_until_ended(daemons, time.monotonic() + _GONE_S)
        paths = [f"{run}/{job.job_id}", f"{run}/jobs/{job.job_id}.json"]
        left_paths = [path for path in paths if os.path.lexists(path)]
        words = [f"process {daemon.pid}" for daemon in left] + left_paths
        found.add("left behind", not words, ", ".join(words) or "nothing")
        after = describe_gpu(ask_nvml(prefix, driver).find(str(job.gpu.uuid)))
        differences = find_differences(before, after)
        found.add("GPU after", not differences, "; ".join(differences) or render_gpu(after))
    _check_log(found, policy.audit_log, job.job_id)


def _run_hook(
    found: Verification, name: str, path: str, job: FakeJob, comment: str = COMMENT
) -> bool:
    environ = build_hook_environment(job, comment)
    started = time.monotonic()
    try:
        ended = run_program([path], environ, timeout_s=HOOK_LIMIT_S)
    except OSError as error:
        found.add(name, ok=False, detail=f"{path}: {os.strerror(error.errno or 0)}")
        return False
    ms = (time.monotonic() - started) * 1000
    words = " ".join((ended.stdout + ended.stderr).split())
    detail = f"exit {ended.returncode}, {ms:.0f} ms" + (f": {words[:300]}" if words else "")
    if ended.problem:
        detail = f"{ended.problem} ({detail})"
    found.add(name, ended.returncode == 0 and not ended.problem, detail)
    return ended.returncode == 0


def _check_setup(found: Verification, path: str, job: FakeJob) -> list[ProcessId]:
    """Read what the job would be told; the daemons that answer."""
    try:
        with open(path, encoding="utf-8") as file:
            setup = json.load(file)
        mode, reason, daemons = setup["mode"], setup["reason"], setup["daemons"]
        notes = [str(note) for note in setup["notes"]]
    except FileNotFoundError:
        found.add("prepared", ok=False, detail=f"the prolog wrote no {path}; see csub admin log")
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        found.add("prepared", ok=False, detail=f"{path} cannot be read ({error})")
        return []
    found.add("prepared", mode == "mps", f"mode {mode or 'none'}: {reason or 'no reason given'}")
    for note in notes:
        found.add("prepared", ok=None, detail=note)
    answering = []
    for daemon in daemons:
        # The kernel says who listens; what a pid file or a name says proves nothing.
        peer = read_peer(daemon["pipe_directory"])
        process = None if peer is None else identify(peer.pid)
        if peer is None or process is None or peer.uid != job.uid:
            who = "nobody" if peer is None or process is None else f"user {peer.uid}"
            found.add("daemon", ok=False, detail=f"{daemon['pipe_directory']}: {who} answers")
            continue
        answering.append(process)
        times = f"control socket after {_render_ms(daemon.get('control_ms'))}"
        words = f"process {process.pid} of user {job.uid} answers; {times}"
        found.add("daemon", ok=True, detail=words)
    return answering


def _check_log(found: Verification, log: str, job_id: str) -> None:
    if not log:
        found.add("log", ok=None, detail="audit_log is empty: nothing is written")
        return
    try:
        entries, _ = read_entries(log, AuditFilter(job=job_id))
    except CollocError as problem:
        found.add("log", ok=False, detail=str(problem))
        return
    hooks = {entry.get("hook") for entry in entries}
    ok = {"prolog", "epilog"} <= hooks
    words = "; ".join(map(describe_entry, entries))
    found.add("log", ok, f"{log} has {words or 'no line of this job'}")


def render_gpu(state: dict[str, Any]) -> str:
    """A GPU's state in one line."""
    if not state:
        return "NVML does not show it"
    pids = state["processes"]
    used = "processes unknown" if pids is None else f"processes {pids or 'none'}"
    memory = state["gpu_memory_used_mb"]
    words = "GPU memory unknown" if memory is None else f"{memory} MiB in use"
    return f"{state['uuid']}: {state['compute_mode']}, {used}, {words}"


def render_checks(checks: list[Check]) -> list[str]:
    """Lines for people."""
    marks = {"ok": "ok    ", "note": "      ", "failed": "FAILED"}
    return align_columns([(marks[check.outcome], check.name, check.detail) for check in checks])


def _render_ms(value: Any) -> str:
    return f"{value:.0f} ms" if isinstance(value, (int, float)) else "unknown"
