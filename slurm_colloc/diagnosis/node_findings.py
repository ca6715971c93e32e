"""What the tiny job tells of its node, judged; pure.

Also: what the node tells of its GPU, MPS and root's hooks, judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.diagnosis.login_findings import (
    NO_PYTHON,
    NO_STATE,
    NO_WRITING,
    DoctorQuestion,
    Finding,
    JobOutcome,
    Level,
    green,
    judge_job,
    red,
    unknown,
    yellow,
)
from slurm_colloc.model.examination import Examination, GpuLook, NvmlLook
from slurm_colloc.model.late_definitions import asdict
from slurm_colloc.report.show_view import name_gpu

# ---- What the node tells of its GPU, MPS and root's hooks, judged; pure --------------------------

_ASK = "ask the administrators"
_TURNS = "members take turns on the GPU (time slices): less throughput, and no limits on threads "
_NO_MPS = f"{_TURNS}and GPU memory"


def judge_nvml(seen: Examination, python: str) -> Finding:
    """The job's GPU is known and fit to be shared."""
    look = seen.nvml
    if look is None:
        return unknown("nvml", f"{seen.node} did not say")
    values = {
        "driver_version": look.driver_version,
        "cuda_version": look.cuda_version,
        "shown": look.shown,
        "gpus": [asdict(gpu) for gpu in look.gpus],
    }
    if look.problem:
        advice = f"{_ASK} to look at the NVIDIA driver of {seen.node}"
        if look.lacks_bindings:
            advice = f"install nvidia-ml-py for {python}"
        elif look.shown == 0 or (look.shown and not seen.slurm_gpus):
            advice = f"{_ASK} to name the GPUs' device files in gres.conf"
        return yellow(
            "nvml",
            f"the GPU on {seen.node} is not known: {look.problem}",
            "packs do not know which GPU is theirs, so MPS is not used",
            advice,
            **values,
        )
    what = _describe(look)
    prohibited = [gpu for gpu in look.gpus if gpu.compute_mode == "PROHIBITED"]
    if prohibited:
        return red(
            "nvml", what, f"{_ASK} to set the GPU's compute mode to DEFAULT (nvidia-smi -c 0)",
            **values,
        )  # fmt: skip
    losses = _find_losses(look, seen)
    if not losses:
        return green("nvml", what, **values)
    return yellow(
        "nvml",
        "; ".join([what, *(seen_there for seen_there, _, _ in losses)]),
        "; ".join(lost for _, lost, _ in losses),
        "; ".join(dict.fromkeys(advice for _, _, advice in losses if advice)),
        **values,
    )


def _describe(look: NvmlLook) -> str:
    alike: dict[str, list[GpuLook]] = {}
    for gpu in look.gpus:
        words = [gpu.name or "a GPU that does not say its name"]
        memory = gpu.gpu_memory_total_mb
        words.append(f"{'unknown' if memory is None else memory} MiB")
        words.append(f"compute mode {gpu.compute_mode or 'unknown'}")
        words.append("MIG unknown" if gpu.mig_enabled is None else _MIG[gpu.mig_enabled])
        alike.setdefault(", ".join(words), []).append(gpu)
    texts = []
    for text, gpus in alike.items():
        if len(look.gpus) == 1:
            who = ""
        elif len(alike) == 1:
            who = f"{len(gpus)} GPUs, each "
        else:
            who = f"{_name(gpus)}: "
        texts.append(f"{who}{text}")
    if look.driver_version:
        texts.append(f"driver {look.driver_version}")
    return "; ".join(texts)


def _name(gpus: Sequence[GpuLook]) -> str:
    return ", ".join(name_gpu(gpu.uuid or "a GPU without a UUID", gpu.index) for gpu in gpus)


_MIG = {True: "MIG on", False: "MIG off"}


def _find_losses(look: NvmlLook, seen: Examination) -> list[tuple[str, str, str]]:
    """What is not as it might be: what is seen, what is lost, what to do."""
    losses = [(doubt, "NVML's answer contradicts itself", _ASK) for doubt in look.doubts]
    cut = [gpu for gpu in look.gpus if gpu.mig_enabled]
    if cut:
        is_part = len(cut) < len(look.gpus)
        verb = "is" if len(cut) == 1 else "are"
        losses.append(
            (
                f"{_name(cut)} {verb} cut into MIG devices"
                if is_part
                else "the GPU is cut into MIG devices",
                "members of a pack over all of them run on the others alone"
                if is_part
                else "packs do not use MPS there, members take turns unless --share=mig is given",
                _advise_on_mig(seen),
            )
        )
    works = seen.mps is not None and not seen.mps.problem
    if not works and any(gpu.compute_mode == "EXCLUSIVE_PROCESS" for gpu in look.gpus):
        losses.append(
            (
                "the GPU takes one process at a time",
                "without MPS only one member of a pack runs at a time",
                f"{_ASK} to set compute mode DEFAULT, or see the line mps",
            )
        )
    count = len(seen.slurm_gpus)
    if look.shown is not None and count and look.shown > count:
        losses.append(
            (
                f"the job has {count} and sees {look.shown}",
                "a program that sets CUDA_VISIBLE_DEVICES itself uses GPUs of other jobs",
                f"{_ASK} to set ConstrainDevices=yes in cgroup.conf",
            )
        )
    by_prolog = seen.mps is not None and seen.mps.by == "prolog"
    strangers = sum(gpu.processes or 0 for gpu in look.gpus)
    if strangers and not by_prolog:
        processes = "1 process" if strangers == 1 else f"{strangers} processes"
        losses.append(
            (
                f"{processes} of others on the GPU",
                "their GPU memory and a part of the GPU's time",
                f"{_ASK} to look for what earlier jobs have left on {seen.node}",
            )
        )
    return losses


def _advise_on_mig(seen: Examination) -> str:
    """What to do on a node whose GPUs are divided: root's hooks may do it for a pack."""
    mig = seen.hooks.mig if seen.hooks is not None else ""
    if mig in ("where-on", "switch"):
        return "--share=mig gives each member an instance of its own: the node's policy allows it"
    allows = "says that jobs may not divide GPUs" if mig else "is not there, or cannot be read"
    return (
        f"name another --partition or --gres; --share=mig needs a policy that allows it, and that "
        f"of {seen.node} {allows}"
    )


def judge_mps(seen: Examination, share: str) -> Finding:
    """MPS works.

    Args:
        seen: The node.
        share: The setting `share`.
    """
    trial = seen.mps
    if trial is None:
        return unknown("mps", f"{seen.node} did not say")
    values = {
        "works": not trial.problem,
        "by": trial.by,
        "control": trial.control or None,
        "control_ms": trial.control_ms,
        "active_ms": trial.active_ms,
        "left": list(trial.left),
        "notes": list(trial.notes),
    }
    if trial.problem:
        what = f"{seen.node} has no MPS: {trial.problem}"
        if trial.control:
            what = f"MPS does not work on {seen.node}: {trial.problem}"
        advice = f"{_ASK}: MPS comes with the NVIDIA driver"
        if seen.nvml is not None and seen.nvml.problem and trial.control:
            advice = "see the line nvml"
        if share == "mps!":
            return red("mps", what, f'{advice}; or set share to "auto" instead of "mps!"', **values)
        return yellow("mps", what, _NO_MPS, advice, **values)
    whose = "the node's own daemon (prolog)" if trial.by == "prolog" else "a daemon of your own"
    took = [] if trial.control_ms is None else [f"control socket after {trial.control_ms:.0f} ms"]
    took += [] if trial.active_ms is None else [f"server after {trial.active_ms:.0f} ms"]
    what = ": ".join(filter(None, (f"{whose} works", ", ".join(took))))
    if trial.left:
        return yellow(
            "mps",
            f"{what}; its end left {'; '.join(trial.left)}",
            "what stays on the node may disturb later jobs",
            _ASK,
            **values,
        )
    return green("mps", "; ".join((what, *trial.notes)), **values)


def judge_hooks(seen: Examination) -> Finding:
    """Root prepares the GPU for jobs."""
    hooks = seen.hooks
    if hooks is None:
        return unknown("hooks", f"{seen.node} did not say")
    by = seen.mps.by if seen.mps is not None else ""
    values = {
        "installed": hooks.is_installed or hooks.is_prepared or bool(hooks.problem),
        "prepared": hooks.is_prepared,
        "used": by == "prolog",
    }
    lost = "packs start an MPS daemon of their own, and the GPU's compute mode stays as it is"
    if hooks.is_prepared and by == "prolog":
        return green("hooks", f"the prolog of {seen.node} has prepared MPS", **values)
    if hooks.is_prepared:
        notes = "; ".join(seen.mps.notes) if seen.mps is not None else ""
        what = f"the MPS daemon that the prolog of {seen.node} has started is not used"
        return yellow("hooks", f"{what}: {notes}" if notes else what, lost, _ASK, **values)
    if hooks.problem:
        return yellow("hooks", hooks.problem, lost, _ASK, **values)
    if hooks.is_installed:
        what = f"{seen.node} has hooks, and its prolog did nothing for the job"
        return yellow("hooks", what, lost, _ASK, **values)
    return yellow("hooks", f"none on {seen.node}", lost, "", **values)


# ----
# What the tiny job tells of its node, judged; pure.

_OLDEST_PYTHON = (3, 11)
_LITTLE_MB = 1024
_SHARE = "set state_dir in the settings to a path that login and compute nodes share"

CHECKS = ("job", "shared-state", "python", "steps", "tmpdir", "private-tmp", "nvml", "mps", "hooks")


def judge_no_job(why: str) -> list[Finding]:
    """The findings of a job that was not run.

    Args:
        why: Why not.
    """
    return [unknown(check, why) for check in CHECKS]


def judge_outcome(outcome: JobOutcome, asked: DoctorQuestion) -> list[Finding]:
    """All findings of the job and its node, in the order in which they are shown."""
    return [
        judge_job(outcome, asked),
        judge_shared_state(outcome, asked),
        judge_python(outcome, asked),
        judge_steps(outcome, asked),
        judge_tmpdir(outcome),
        judge_private_tmp(outcome),
        *_judge_gpu(outcome, asked),
    ]


def _judge_gpu(outcome: JobOutcome, asked: DoctorQuestion) -> list[Finding]:
    names = ("nvml", "mps", "hooks")
    if not asked.gpus:
        return [unknown(name, "the job asked for no GPU") for name in names]
    if outcome.seen is None:
        return [_unseen(name, outcome) for name in names]
    seen = outcome.seen
    return [judge_nvml(seen, asked.python), judge_mps(seen, asked.share), judge_hooks(seen)]


def _unseen(check: str, outcome: JobOutcome) -> Finding:
    if not outcome.node:
        return unknown(check, "no job ran")
    return unknown(check, f"no answer came back from {outcome.node}")


def judge_shared_state(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """The node sees what csub writes."""
    check, node = "shared-state", outcome.node
    values = {"path": asked.place}
    if outcome.exit_code in (NO_STATE, NO_WRITING) and outcome.seen is None:
        how = "is not on" if outcome.exit_code == NO_STATE else "cannot be written from"
        return red(check, f"{asked.place} {how} {node or 'the node'}", _SHARE, **values)
    if not outcome.wrote:
        return _unseen(check, outcome)
    what = f"the state directory is seen and can be written from {node}"
    return green(check, what, **values)


def judge_python(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """The interpreter of the nodes is there, with this package."""
    check, node, seen = "python", outcome.node or "the node", outcome.seen
    install = f"install slurm_colloc {asked.version} for it, or set node_python in the settings"
    values: dict[str, object] = {"executable": asked.python, "version": None, "package": None}
    if outcome.exit_code == NO_PYTHON and seen is None:
        advice = "set node_python in the settings to a Python that the nodes have"
        return red(check, f"there is no Python at {asked.python} on {node}", advice, **values)
    if seen is None:
        version = re.search(r"(\d+)\.(\d+)\S*", outcome.python)
        if version and (int(version[1]), int(version[2])) < _OLDEST_PYTHON:
            return red(
                check,
                f"{asked.python} on {node} is Python {version[0]}",
                "set node_python in the settings to a Python from 3.11 on",
                **{**values, "version": version[0]},
            )
        if "No module named" in outcome.errors:
            what = f"{asked.python} on {node} has no slurm_colloc ({outcome.errors})"
            return red(check, what, install, **values)
        if outcome.errors:
            what = f"{asked.python} on {node} cannot look: {outcome.errors}"
            return red(check, what, install, **values)
        return _unseen(check, outcome)
    values = {"executable": asked.python, "version": seen.python, "package": seen.version}
    what = f"{seen.python} ({asked.python}) with slurm_colloc {seen.version} on {seen.node}"
    if seen.version != asked.version:
        return yellow(
            check,
            f"{what}, and {asked.version} here",
            "packs may ask for what the other version does not know",
            install,
            **values,
        )
    return green(check, what, **values)


def judge_steps(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """Members can be job steps."""
    check = "steps"
    trial = outcome.seen.steps if outcome.seen else None
    if trial is None:
        return _unseen(check, outcome)
    values = {"works": not trial.problem, "elapsed_ms": trial.elapsed_ms}
    if not trial.problem:
        took = "" if trial.elapsed_ms is None else f" in {trial.elapsed_ms:.0f} ms"
        return green(check, f"srun --overlap starts a step{took}", **values)
    if asked.launcher == "process":
        return green(check, 'members are plain processes (launcher = "process")', **values)
    what = f"srun --overlap starts no step: {trial.problem}"
    if asked.launcher == "srun":
        advice = f'set launcher to "auto" in the settings, and {_ASK} about srun on the nodes'
        return red(check, what, advice, **values)
    return yellow(
        check,
        what,
        "members are plain processes: no host memory limit of their own, no line of their own in "
        "sacct",
        f"{_ASK} about srun on the nodes",
        **values,
    )


def judge_tmpdir(outcome: JobOutcome) -> Finding:
    """There is room for temporary files."""
    check = "tmpdir"
    look = outcome.seen.tmpdir if outcome.seen else None
    if look is None:
        return _unseen(check, outcome)
    values = {"path": look.path, "free_mb": look.free_mb}
    if look.problem:
        return red(
            check,
            f"nothing can be written to {look.path}: {look.problem}",
            "set TMPDIR to a directory that the nodes have and you may write",
            **values,
        )
    room = "an unknown amount" if look.free_mb is None else f"{look.free_mb} MiB"
    what = f"{look.path} has {room} free"
    if look.free_mb is not None and look.free_mb < _LITTLE_MB:
        return yellow(
            check,
            what,
            "programs that write temporary files may fail",
            "set TMPDIR to a directory with more room",
            **values,
        )
    return green(check, what, **values)


def judge_private_tmp(outcome: JobOutcome) -> Finding:
    """Members may have a /tmp of their own."""
    check = "private-tmp"
    problem = outcome.seen.no_places if outcome.seen else None
    if problem is None:
        return _unseen(check, outcome)
    if not problem:
        return green(check, "members may have a /tmp of their own", works=True)
    return yellow(
        check,
        f"members get no /tmp of their own: {problem}",
        "members of a pack share /tmp and directories with the job's id, also where sbatch gives "
        "each job its own",
        f"{_ASK} to allow user namespaces (docs/admin.md)",
        works=False,
    )


def find_obstacle(findings: Sequence[Finding]) -> str:
    """Why no job needs to be tried after what the login node has told; empty where one does."""
    for check, why in (
        ("settings", "the settings cannot be read"),
        ("slurm", "there is no Slurm here"),
        ("controller", "the controller does not answer"),
        ("state", "the state directory cannot be written"),
        ("nodes", "no node takes jobs"),
    ):
        if any(f.check == check and f.level is Level.RED for f in findings):
            return why
    return ""
