"""The installed hooks, run by root against a job that does not exist, and what they did."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from slurm_colloc.administration.audit_view import AuditFilter, describe_entry, read_entries
from slurm_colloc.administration.fake_job import (
    FakeJob,
    build_hook_environment,
    describe_gpu,
    find_differences,
)
from slurm_colloc.administration.node_plan import NodeFile, read_constants
from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.host.hooks.node_policy import NodePolicy, read_policy
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer
from slurm_colloc.host.nvml.nvml_query import probe_gpus
from slurm_colloc.host.system.child_programs import run_program
from slurm_colloc.host.system.node_processes import ProcessId, identify, wait_until_ended
from slurm_colloc.host.system.trusted_paths import open_trusted

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
    python = f"{prefix}/bin/python"
    exposed = find_exposed(prefix)
    if exposed:
        detail = f"{exposed} can be changed by others than root"
        found.add("python", ok=False, detail=detail)
        return
    code = (
        "import sys, slurm_colloc, slurm_colloc.host.lifecycle as l; "
        "import slurm_colloc.host.hooks.prolog, slurm_colloc.host.hooks.epilog; "
        "print(slurm_colloc.__version__, '%d.%d.%d' % sys.version_info[:3], l.__file__)"
    )
    try:
        os.close(open_trusted(os.path.realpath(f"{prefix}/bin")))
        ended = run_program(
            [python, "-I", "-B", "-c", code], build_plain_environment(), timeout_s=_PYTHON_LIMIT_S
        )
    except NodeError as problem:
        found.add("python", ok=False, detail=problem.message)
        return
    except OSError as error:
        found.add("python", ok=False, detail=f"{python}: {os.strerror(error.errno or 0)}")
        return
    if ended.returncode != 0:
        words = (ended.stderr.strip().splitlines() or [ended.problem or "it failed"])[-1]
        found.add("python", ok=False, detail=f"{python}: {words}")
        return
    version, release, module = ended.stdout.split(maxsplit=2)
    found.add("python", ok=True, detail=f"{release} with slurm_colloc {version} ({module.strip()})")


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
    return policy


def build_plain_environment(driver: str = "") -> dict[str, str]:
    """What programs get that are not hooks."""
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    if driver:
        environ["LD_LIBRARY_PATH"] = f"{driver}/lib"
    return environ


def ask_nvml(prefix: str, driver: str) -> NvmlAnswer:
    """Ask NVML as the hooks do: with the nodes' interpreter and a clean environment."""
    return probe_gpus(
        _NVML_LIMIT_S, python=f"{prefix}/bin/python", environ=build_plain_environment(driver)
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
    found: Verification, name: str, path: str, job: FakeJob, comment: str | None = None
) -> bool:
    environ = (
        build_hook_environment(job) if comment is None else build_hook_environment(job, comment)
    )
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
        if daemon.get("active_ms") is not None:
            times += f", server after {_render_ms(daemon['active_ms'])}"
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


def render_checks(checks: list[Check]) -> Iterator[str]:
    """Lines for people."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        mark = {"ok": "ok    ", "note": "      ", "failed": "FAILED"}[check.outcome]
        yield f"{mark}  {check.name:<{width}}  {check.detail}"


def _render_ms(value: Any) -> str:
    return f"{value:.0f} ms" if isinstance(value, (int, float)) else "unknown"
