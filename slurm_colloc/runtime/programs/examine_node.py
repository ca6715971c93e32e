"""Looks at a node for `csub doctor`. Who: the user; where: the node, inside a job of its own.

python -IB -m slurm_colloc.runtime.programs.examine_node DIRECTORY

DIRECTORY holds what is asked (asked.json); the answer is written into it as node.json, one JSON
object with the fields of model.examination. Nothing else stays on the node.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn

from slurm_colloc import __version__
from slurm_colloc.errors import CollocError
from slurm_colloc.host.hooks.hook_job import DEFAULT_RUN
from slurm_colloc.host.hooks.node_policy import MIG_CHOICES, MIG_OFF
from slurm_colloc.host.keeper import keeper_messages as keepers
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.mps.mps_control import find_programs
from slurm_colloc.host.mps.mps_state import MpsOptions, choose_passed_environment
from slurm_colloc.host.nvml.nvml_query import NvmlAnswer, choose_job_gpus, probe_gpus
from slurm_colloc.host.system.child_programs import run_program
from slurm_colloc.model.examination import (
    Examination,
    GpuLook,
    HooksLook,
    MpsTrial,
    NvmlLook,
    StepTrial,
    TmpdirLook,
)
from slurm_colloc.model.late_definitions import asdict, replace
from slurm_colloc.process_name import name_process
from slurm_colloc.runtime.discover_gpus import judge_finding
from slurm_colloc.runtime.guard import GuardPipe, stand_guard
from slurm_colloc.runtime.member_environment import build_step_environment
from slurm_colloc.runtime.node_daemon import (
    POLICY_VARIABLE,
    RUN_VARIABLE,
    PreparedFinding,
    find_prepared,
)
from slurm_colloc.runtime.programs.own_places import try_places
from slurm_colloc.runtime.step_command import build_srun_argv
from slurm_colloc.store.atomic_files import read_bytes, read_json, write_json

STEP_TIMEOUT_S = 20.0
MPS_STOP_S = 20.0
_ANSWER = "csub step"
_POLICY = "/etc/slurm_colloc/node.toml"


def main(directory: str) -> int:
    """Look, and write down what was seen."""
    name_process("csub-doctor")
    asked = read_json(f"{directory}/asked.json") or {}
    # A cancelled job leaves no MPS daemon: see runtime.guard.
    guarded = stand_guard()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    seen = examine(asked, os.environ, guarded)
    write_json(f"{directory}/node.json", asdict(seen))
    return 0


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def examine(
    asked: Mapping[str, Any], environ: Mapping[str, str], guarded: GuardPipe
) -> Examination:
    """Look at everything.

    Args:
        asked: `gpus`: how many were asked for; `nvml_s`, `mps_s`: how long each may take.
        environ: The batch script's environment.
        guarded: Is told of the MPS daemon's directory.
    """
    gpus = environ.get("SLURM_JOB_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = Examination(
        node=environ.get("SLURMD_NODENAME") or platform.node(),
        version=__version__,
        python=platform.python_version(),
        slurm_gpus=tuple(word for word in gpus.split(",") if word),
        steps=try_step(environ),
        tmpdir=look_at_tmpdir(environ.get("TMPDIR") or "/tmp"),
        no_places=try_places(),
    )
    if not asked.get("gpus"):
        return seen
    answer = probe_gpus(float(asked.get("nvml_s", 20.0)))
    prepared = find_prepared(environ, choose_job_gpus(answer, environ).uuids)
    return replace(
        seen,
        nvml=judge_nvml(answer, environ),
        hooks=look_at_hooks(environ, prepared),
        mps=try_mps(answer, environ, prepared, guarded, float(asked.get("mps_s", 45.0))),
    )


def try_step(environ: Mapping[str, str]) -> StepTrial:
    """Start a job step alongside the batch script, as the runner does for each member."""
    argv = build_srun_argv("csub-doctor", None, ["/bin/sh", "-c", f"echo '{_ANSWER}'"])
    started = time.monotonic()
    try:
        outcome = run_program(argv, build_step_environment(environ), timeout_s=STEP_TIMEOUT_S)
    except OSError as error:
        return StepTrial(f"srun cannot be started: {os.strerror(error.errno or 0)}")
    if outcome.returncode == 0 and _ANSWER in outcome.stdout:
        return StepTrial(elapsed_ms=round((time.monotonic() - started) * 1000, 1))
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    words = "; ".join(line.removeprefix("srun: error: ") for line in lines[:3])
    return StepTrial(outcome.problem or words or f"srun ended with {outcome.returncode}")


def look_at_tmpdir(path: str) -> TmpdirLook:
    """Write a file where programs put their temporary ones."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"csub doctor\n")
            file.flush()
        free = os.statvfs(path)
    except OSError as error:
        return TmpdirLook(path, os.strerror(error.errno or 0))
    return TmpdirLook(path, "", free.f_bavail * free.f_frsize >> 20)


def judge_nvml(answer: NvmlAnswer, environ: Mapping[str, str]) -> NvmlLook:
    """What NVML says of the job's GPUs; pure."""
    if answer.problem:
        return NvmlLook(answer.problem, lacks_bindings=answer.lacks_bindings)
    chosen = choose_job_gpus(answer, environ)
    return NvmlLook(
        problem="" if chosen.uuids else chosen.reason,
        driver_version=answer.driver_version,
        cuda_version=answer.cuda_version,
        shown=len(answer.gpus),
        gpus=tuple(
            GpuLook(
                gpu.uuid,
                gpu.name,
                gpu.gpu_memory_total_mb,
                gpu.compute_mode,
                gpu.mig_enabled,
                None if gpu.processes is None else len(gpu.processes),
                gpu.nvml_index,
            )
            for gpu in answer.gpus
            if gpu.uuid in chosen.uuids
        ),
        doubts=tuple(answer.doubts),
    )


def look_at_hooks(environ: Mapping[str, str], prepared: PreparedFinding) -> HooksLook:
    """What root prepared for this job."""
    run = environ.get(RUN_VARIABLE) or DEFAULT_RUN
    run = run.replace("%n", environ.get("SLURMD_NODENAME", ""))
    policy = environ.get(POLICY_VARIABLE) or _POLICY
    return HooksLook(
        is_installed=os.path.isdir(run) or os.path.exists(policy),
        is_prepared=prepared.daemon is not None,
        problem="; ".join(prepared.notes),
        mig=_read_mig_choice(policy),
    )


def _read_mig_choice(policy: str) -> str:
    """What the node's policy says of MIG, for people alone: root's hooks decide by it."""
    try:
        values = tomllib.loads(read_bytes(policy).decode())
    except (OSError, ValueError):
        return ""
    choice = values.get("mig", MIG_OFF)
    return choice if choice in MIG_CHOICES else ""


def try_mps(
    answer: NvmlAnswer,
    environ: Mapping[str, str],
    prepared: PreparedFinding,
    guarded: GuardPipe,
    timeout_s: float,
) -> MpsTrial:
    """Use the node's daemon, or start one as a pack does and end it again.

    Args:
        answer: What NVML says.
        environ: The batch script's environment.
        prepared: What the node's prolog has prepared.
        guarded: Is told of the daemon's directory.
        timeout_s: How long it may take.
    """
    path = environ.get("PATH", "")
    try:
        programs = find_programs(path)
    except CollocError as problem:
        return MpsTrial(problem.message)
    finding = judge_finding(programs, answer, environ)
    trial = MpsTrial(control=programs.control, notes=finding.notes)
    uuids = finding.uuids or prepared.gpus
    # As in runtime.gpu_mode: what NVML does not tell the job, it may have told root.
    if finding.problem and (finding.uuids or not prepared.gpus):
        return replace(trial, problem=finding.problem)
    options = MpsOptions(
        gpus=uuids, environment=choose_passed_environment(environ), path=path, label="csub doctor"
    )
    if prepared.daemon is not None:
        adopting = replace(options, adopt=prepared.daemon.pipe_directory)
        adopted = _try_daemon(adopting, trial, guarded, timeout_s)
        if not adopted.problem:
            # Its start was long ago.
            return replace(adopted, by="prolog", control_ms=prepared.daemon.control_ms, left=())
        note = f"the node's own daemon cannot be used: {adopted.problem}"
        trial = replace(trial, notes=(*trial.notes, note))
    return _try_daemon(options, trial, guarded, timeout_s)


def _try_daemon(
    options: MpsOptions, trial: MpsTrial, guarded: GuardPipe, timeout_s: float
) -> MpsTrial:
    try:
        keeper = KeeperClient.start(options, log=2)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        return replace(trial, problem=f"the MPS keeper cannot be started: {reason}")
    try:
        # The directory of the node's own daemon stays.
        trial = _hear(keeper, trial, None if options.adopt else guarded, timeout_s)
    finally:
        left = _stop(keeper)
    return replace(trial, left=(*trial.left, *left))


def _hear(
    keeper: KeeperClient, trial: MpsTrial, guarded: GuardPipe | None, timeout_s: float
) -> MpsTrial:
    """Wait until a server takes clients, or for the reason why none does."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for event in keeper.wait(min(deadline, time.monotonic() + 0.05)):
            if isinstance(event, keepers.ControlProved):
                if guarded is not None:
                    guarded.announce(event.directory)
                trial = replace(trial, control_ms=round(event.control_ms, 1))
            elif isinstance(event, keepers.Ready):
                active_ms = None if event.active_ms is None else round(event.active_ms, 1)
                return replace(trial, active_ms=active_ms)
            elif isinstance(event, keepers.Failed):
                return replace(trial, problem=event.reason)
            elif isinstance(event, keepers.KeeperDied):
                report = keeper.recover()
                return replace(
                    trial, problem="the MPS keeper has ended unexpectedly", left=report.left
                )
    return replace(trial, problem=f"no MPS server works within {timeout_s:g} s")


def _stop(keeper: KeeperClient) -> tuple[str, ...]:
    """End the daemon; what is left of it."""
    if not keeper.is_alive:
        return ()
    keeper.stop()
    events = keeper.wait(time.monotonic() + MPS_STOP_S)
    report = next((e.report for e in events if isinstance(e, keepers.Stopped)), None)
    if report is None:
        report = keeper.recover()
    stuck = tuple(f"process {pid} cannot be killed" for pid in report.unkillable)
    return (*report.left, *stuck)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except (CollocError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
