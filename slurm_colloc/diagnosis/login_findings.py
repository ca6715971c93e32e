"""What the login node tells, judged; pure.

Also: one line of the doctor's: what was looked at, how it is, what is lost or to be done; values;
the nodes that Slurm has, and how it is set up, judged; what became of the tiny job, judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from slurm_colloc.errors import CollocError, SlurmUnreachable
from slurm_colloc.model.examination import Examination
from slurm_colloc.model.gpu_pace import GpuPace
from slurm_colloc.model.job_ids import OWN_ID, REAL_ID
from slurm_colloc.model.late_definitions import asdict, dataclass, field
from slurm_colloc.report.waiting_reasons import find_reason, normalise_reason
from slurm_colloc.slurm.slurm_commands import NodeState

# ----
# One line of the doctor's: what was looked at, how it is, what is lost or to be done; values.


class Level(StrEnum):
    """How something is."""

    GREEN = "green"
    YELLOW = "yellow"
    """csub works, but less well."""
    RED = "red"
    """csub does not work before something is done."""
    UNKNOWN = "unknown"
    """It was not looked at, or could not be."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What, as one word.
        level: How it is.
        what: What was seen, as a clause.
        lost: What does not work because of it; a yellow one always says it.
        advice: What to do; a red one always says it.
        values: The same for programs; see docs/json.md.
    """

    check: str
    level: Level
    what: str
    lost: str = ""
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def green(check: str, what: str, **values: object) -> Finding:
    """It is as it should be."""
    return Finding(check, Level.GREEN, what, values=values)


def yellow(check: str, what: str, lost: str, advice: str = "", **values: object) -> Finding:
    """It could be better."""
    return Finding(check, Level.YELLOW, what, lost, advice, values)


def red(check: str, what: str, advice: str, **values: object) -> Finding:
    """It must be changed."""
    return Finding(check, Level.RED, what, "", advice, values)


def unknown(check: str, why: str) -> Finding:
    """It was not looked at."""
    return Finding(check, Level.UNKNOWN, why)


def compute_exit_status(findings: Iterable[Finding]) -> int:
    """1 where anything is red."""
    return int(any(finding.level is Level.RED for finding in findings))


# ---- The nodes that Slurm has, and how it is set up, judged; pure --------------------------------

_ASK = "ask the administrators"


@dataclass(frozen=True)
class Partition:
    """Where a job would run.

    Attributes:
        name: Its name; empty where none was named and Slurm has no default.
        nodes: Its nodes.
        others_with_gpus: Other partitions that have GPUs.
    """

    name: str
    nodes: tuple[NodeState, ...] = ()
    others_with_gpus: tuple[str, ...] = ()

    @property
    def usable(self) -> tuple[NodeState, ...]:
        """Nodes that take jobs."""
        return tuple(node for node in self.nodes if node.is_usable)

    @property
    def gpus(self) -> int:
        """GPUs of its nodes."""
        return sum(node.gpus for node in self.nodes)


def choose_partition(nodes: Sequence[NodeState], asked: str) -> Partition:
    """The partition of a job that asks for one, or for none.

    Args:
        nodes: All nodes.
        asked: What `--partition` says, names with commas between; empty for the default.
    """
    names = set(asked.split(",")) if asked else {n.partition for n in nodes if n.is_default}
    others = {node.partition for node in nodes if node.gpus} - names
    chosen = {node.name: node for node in nodes if node.partition in names}
    return Partition(
        asked or ",".join(sorted(names)), tuple(chosen.values()), tuple(sorted(others))
    )


def judge_nodes(nodes: Sequence[NodeState] | None, partition: Partition | None) -> Finding:
    """There are nodes that take jobs."""
    if partition is None:
        return unknown("nodes", "Slurm did not say which nodes there are")
    if not partition.nodes:
        known = sorted({node.partition for node in nodes or ()})
        what = f"there is no partition {partition.name}"
        if not partition.name:
            what = "Slurm has no default partition"
        return red("nodes", what, f"name one with --partition: {', '.join(known) or _ASK}")
    usable, count = len(partition.usable), len(partition.nodes)
    values = {"partition": partition.name, "nodes": count, "usable": usable}
    down = [node for node in partition.nodes if not node.is_usable]
    told = "; ".join(
        f"{node.name} {node.state}{f' ({node.reason})' if node.reason else ''}" for node in down[:3]
    )
    more = f" and {len(down) - 3} more" if len(down) > 3 else ""
    if not usable:
        return red(
            "nodes",
            f"no node of partition {partition.name} takes jobs: {told}{more}",
            f"choose another partition with --partition, or {_ASK}; sinfo -R shows all reasons",
            **values,
        )
    what = f"{usable} of {count} in partition {partition.name} take jobs"
    return green("nodes", f"{what} (not {told}{more})" if down else what, **values)


def judge_gres(config: Mapping[str, str] | None, partition: Partition | None) -> Finding:
    """Slurm gives GPUs."""
    if partition is None or not partition.nodes:
        return unknown("gres", "Slurm did not say which nodes there are")
    types = (config or {}).get("GresTypes", "")
    values = {"gres_types": types or None, "gpus": partition.gpus, "partition": partition.name}
    if partition.gpus:
        having = sum(node.gpus > 0 for node in partition.nodes)
        count = "1 GPU" if partition.gpus == 1 else f"{partition.gpus} GPUs"
        return green(
            "gres",
            f"{count} on {having} of {len(partition.nodes)} nodes of partition {partition.name}",
            **values,
        )
    if partition.others_with_gpus:
        return yellow(
            "gres",
            f"Slurm has no GPU in partition {partition.name}",
            "nothing can be shared there: every job runs alone, as with sbatch",
            f"look at a partition with GPUs: --partition={partition.others_with_gpus[0]}",
            **values,
        )
    return red(
        "gres",
        f"Slurm knows of no GPU on any node (GresTypes={types or '(null)'})",
        f"{_ASK} to name the GPUs in slurm.conf (GresTypes=gpu, Gres=gpu:N) and gres.conf; until "
        "then every job runs alone, as with sbatch",
        **values,
    )


_WISHES = {
    "ProctrackType": ("proctrack/cgroup", "processes that leave their session may outlive it"),
    "TaskPlugin": ("task/cgroup", "the kernel limits nothing of a job"),
    "ConstrainCores": ("yes", "a job may use more CPUs than its own"),
    "ConstrainRAMSpace": ("yes", "a member may use more host memory than its limit"),
    "ConstrainDevices": ("yes", "a program may use a GPU that is another job's"),
}
"""Settings of Slurm that members are better off with, and what is lost otherwise."""


def judge_cgroup(config: Mapping[str, str] | None) -> Finding:
    """Slurm's limits are enforced."""
    if config is None:
        return unknown("cgroup", "the controller did not say how it is set up")
    values = {name: config.get(name) for name in _WISHES}
    missing = {
        name: lost
        for name, (wanted, lost) in _WISHES.items()
        if wanted not in _split(config.get(name, ""))
    }
    # Without the plugin what cgroup.conf says has no effect.
    if "TaskPlugin" in missing:
        missing = {n: lost for n, lost in missing.items() if not n.startswith("Constrain")}
    if not missing:
        return green("cgroup", "CPUs, host memory and GPUs of a job are limited", **values)
    shown = ", ".join(f"{name}={config.get(name, '(none)')}" for name in missing)
    return yellow("cgroup", shown, "; ".join(missing.values()), "", **values)


def _split(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",")]


# ---- What the login node tells, judged; pure -----------------------------------------------------

OLDEST, NEWEST = (22, 5), (26, 5)
"""The Slurm releases that csub is tested with."""


@dataclass(frozen=True)
class LoginFacts:
    """What was asked on the login node.

    Attributes:
        version: Of csub.
        python: The version of its Python.
        executable: That Python.
        settings_files: The files that settings were read from.
        settings_trouble: What is wrong with them.
        settings_warnings: What in them is ignored, a sentence each.
        client_version: Of Slurm's commands; None where there are none.
        client_trouble: Why not.
        config: `scontrol show config`; None where the controller did not answer.
        controller_trouble: Why not.
        answer_ms: How long it took to answer.
        access: The way to Slurm, `commands` or `pyslurm 25.5.0`, and why.
        access_trouble: Why the way that is set cannot be taken.
        nodes: All nodes; None where Slurm did not say.
        state_path: The state directory.
        state_trouble: Why it cannot be written.
        paces: How fast GPUs are, by the user's own packs.
        job_id: What the settings say of SLURM_JOB_ID in members.
        large_ids: Why Slurm's ids may be as large as csub's own; empty where they cannot be, None
            where Slurm did not say.
    """

    version: str
    python: str
    executable: str
    settings_files: tuple[str, ...] = ()
    settings_trouble: CollocError | None = None
    settings_warnings: tuple[str, ...] = ()
    client_version: str | None = None
    client_trouble: CollocError | None = None
    config: Mapping[str, str] | None = None
    controller_trouble: CollocError | None = None
    answer_ms: float | None = None
    access: str = ""
    access_trouble: CollocError | None = None
    nodes: tuple[NodeState, ...] | None = None
    state_path: str = ""
    state_trouble: CollocError | None = None
    paces: tuple[GpuPace, ...] = ()
    job_id: str = ""
    large_ids: str | None = None


def judge_login(facts: LoginFacts, partition: Partition | None) -> list[Finding]:
    """All findings of the login node, in the order in which they are shown.

    Args:
        facts: What was asked.
        partition: Where the job would run; None where Slurm did not say which nodes there are.
    """
    return [
        green(
            "csub",
            f"{facts.version}, Python {facts.python} ({facts.executable})",
            version=facts.version,
            python=facts.python,
            executable=facts.executable,
        ),
        judge_settings(facts),
        judge_state(facts),
        judge_slurm(facts),
        judge_controller(facts),
        judge_access(facts),
        judge_nodes(facts.nodes, partition),
        judge_gres(facts.config, partition),
        judge_cgroup(facts.config),
        judge_numbers(facts),
        *judge_gpus(facts.paces),
    ]


_ONE_ID = "scripts that name files, ports or seeds after SLURM_JOB_ID collide in a pack"


def judge_numbers(facts: LoginFacts) -> Finding:
    """What SLURM_JOB_ID is for members."""
    check = "numbers"
    if facts.job_id == REAL_ID:
        what = "SLURM_JOB_ID is one for all members of a pack (job_id in the settings)"
        return yellow(check, what, _ONE_ID, 'job_id = "auto"', own=False)
    if facts.large_ids is None and facts.job_id != OWN_ID:
        return unknown(check, "Slurm did not say how large its ids are")
    if not facts.large_ids:
        return green(check, "each member has a SLURM_JOB_ID of its own", own=True)
    if facts.job_id == OWN_ID:
        what = f"members have numbers of their own, which Slurm may give, too: {facts.large_ids}"
        lost = "a number may mean a job of Slurm's and a member"
        return yellow(check, what, lost, 'job_id = "auto"', own=True)
    what = f"SLURM_JOB_ID is one for all members of a pack: {facts.large_ids}"
    return yellow(check, what, _ONE_ID, "name files after SLURM_COLLOC_NAME", own=False)


def judge_gpus(paces: Sequence[GpuPace]) -> list[Finding]:
    """No GPU is slower than others of its model; nothing where no pack has told of one."""
    known = [pace for pace in paces if pace.rate is not None or pace.throttled is not None]
    slow = [pace for pace in known if pace.is_slow]
    values = {"slow": [asdict(pace) for pace in slow], "known": len(known)}
    if not slow:
        count = "the GPU" if len(known) == 1 else f"none of the {len(known)} GPUs"
        verb = "is not" if len(known) == 1 else "is"
        what = f"{count} that your packs have measured {verb} slow"
        return [green("gpus", what, **values)] if known else []
    told = "; ".join(pace.describe() for pace in slow)
    nodes = ",".join(dict.fromkeys(pace.node for pace in slow))
    advice = f"csub --avoid-slow keeps jobs off {nodes}; show it to the administrators"
    return [yellow("gpus", told, "jobs take longer there", advice, **values)]


def judge_settings(facts: LoginFacts) -> Finding:
    """The settings can be read."""
    trouble = facts.settings_trouble
    if trouble:
        return red("settings", trouble.message, trouble.hint or "correct that file")
    files = list(facts.settings_files)
    if facts.settings_warnings:
        told = "; ".join(facts.settings_warnings)
        return yellow("settings", told, "it has no effect", "remove it there", files=files)
    return green("settings", ", ".join(files) or "built-in values", files=files)


def judge_state(facts: LoginFacts) -> Finding:
    """The state directory can be written here."""
    if facts.settings_trouble:
        return unknown("state", "the settings do not say where it is")
    trouble = facts.state_trouble
    if trouble:
        hint = trouble.hint or "set state_dir in the settings to a directory you may write"
        return red("state", trouble.message, hint, path=facts.state_path)
    return green("state", f"{facts.state_path} can be written here", path=facts.state_path)


def judge_slurm(facts: LoginFacts) -> Finding:
    """Slurm's commands are there, and of a release that csub knows."""
    if facts.client_version is None:
        trouble = facts.client_trouble or SlurmUnreachable("its version cannot be read")
        return red("slurm", trouble.message, trouble.hint or "call csub where sbatch works")
    here = facts.client_version
    there = (facts.config or {}).get("SLURM_VERSION", "")
    values = {"version": here, "controller_version": there or None}
    release = parse_release(here)
    if release is not None and not OLDEST <= release <= NEWEST:
        return yellow(
            "slurm",
            f"{here}",
            "csub has not been tested with it: the releases from 22.05 to 26.05 are tested",
            "",
            **values,
        )
    if there and release is not None and release != parse_release(there):
        return yellow(
            "slurm",
            f"the commands here are {here}, the controller is {there}",
            "options and answers of the newer release; newer commands may not understand an older "
            "controller at all",
            _ASK,
            **values,
        )
    return green("slurm", here, **values)


def parse_release(version: str) -> tuple[int, int] | None:
    """`22.05.8` is (22, 5); None for a text that is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


def judge_controller(facts: LoginFacts) -> Finding:
    """The controller answers."""
    if facts.client_version is None:
        return unknown("controller", "there are no commands of Slurm to ask it with")
    trouble = facts.controller_trouble
    if trouble or facts.config is None:
        return red(
            "controller",
            trouble.message if trouble else "Slurm's controller does not answer",
            f"try again later, scontrol ping shows when it is back; until then jobs run on one "
            f"machine with csub --local, and if it lasts {_ASK}",
        )
    cluster = facts.config.get("ClusterName", "")
    host = facts.config.get("SlurmctldHost[0]", "").partition("(")[0]
    took = "" if facts.answer_ms is None else f" in {facts.answer_ms:.0f} ms"
    where = f"{host or 'it'} answers{took}"
    return green(
        "controller",
        f"{where}, cluster {cluster}" if cluster else where,
        host=host or None,
        cluster=cluster or None,
        answer_ms=facts.answer_ms,
    )


def judge_access(facts: LoginFacts) -> Finding:
    """Slurm can be asked in the way that is set."""
    trouble = facts.access_trouble
    if trouble:
        return red("access", trouble.message, trouble.hint or "set slurm_access to auto")
    if not facts.access:
        return unknown("access", "there is no Slurm to ask")
    return green("access", f"Slurm is asked through {facts.access}", access=facts.access)


def name_files(paths: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Paths as people write them, with ~ for the home directory."""
    home = environ.get("HOME", "")
    return tuple(
        f"~{path[len(home) :]}" if home and path.startswith(f"{home}{os.sep}") else path
        for path in paths
    )


# ---- What became of the tiny job, judged; pure ---------------------------------------------------

NO_PYTHON, NO_STATE, NO_WRITING = 5, 6, 7
"""Exit statuses of templates/doctor.sbatch.j2."""

NEVER = frozenset(
    {
        "AssociationTimeLimit", "BadConstraints", "DeadLine", "DependencyNeverSatisfied",
        "InvalidAccount", "InvalidQOS", "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue",
        "MaxMemPerLimit", "NodeDown", "PartitionDown", "PartitionInactive", "PartitionNodeLimit",
        "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit", "ReqNodeNotAvail",
        "ReservationDeleted", "launch_failed_requeued_held",
    }
)  # fmt: skip
"""Reasons that do not go away by waiting for other jobs to end."""


@dataclass(frozen=True)
class DoctorQuestion:
    """What the job was to find out.

    Attributes:
        version: Of csub here.
        python: The interpreter of the nodes.
        place: The state directory, in which the node was to write its answer.
        gpus: How many GPUs the job asked for.
        launcher: The setting `launcher`.
        share: The setting `share`.
        timeout_s: How long it was waited for.
    """

    version: str
    python: str
    place: str
    gpus: int = 1
    launcher: str = "auto"
    share: str = "auto"
    timeout_s: float = 120.0


@dataclass(frozen=True)
class JobOutcome:
    """What became of the job.

    Attributes:
        job_id: Its id; empty where there was none.
        trouble: Why it could not be submitted or asked for.
        state: Slurm's word for its state at the end; empty where Slurm had forgotten it.
        reason: Slurm's reason at the end.
        node: Where it ran; empty where it did not.
        exit_code: Its exit status; None where it is not known.
        took_s: How long it was waited for.
        gave_up: It had not ended, and was cancelled.
        wrote: The node could write its answer.
        python: What `python -V` said there.
        errors: The last words of the program that looked.
        seen: What it saw; None where that did not come back.
    """

    job_id: str = ""
    trouble: CollocError | None = None
    state: str = ""
    reason: str = ""
    node: str = ""
    exit_code: int | None = None
    took_s: float = 0.0
    gave_up: bool = False
    wrote: bool = False
    python: str = ""
    errors: str = ""
    seen: Examination | None = None


def judge_job(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """A job of the user's starts and ends."""
    if outcome.trouble:
        return red(
            "job",
            outcome.trouble.message,
            outcome.trouble.hint
            or "add what this site requires: --account, --partition, --qos, --gres",
            job_id=outcome.job_id or None,
        )
    values: dict[str, object] = {
        "job_id": outcome.job_id,
        "state": outcome.state or None,
        "reason": outcome.reason or None,
        "node": outcome.node or None,
        "exit_code": outcome.exit_code,
        "took_s": round(outcome.took_s, 1),
    }
    name = f"job {outcome.job_id}"
    if outcome.gave_up:
        return _judge_given_up(outcome, asked, name, values)
    is_known = outcome.exit_code in (NO_PYTHON, NO_STATE, NO_WRITING) or outcome.wrote
    if outcome.seen is not None or (is_known and outcome.state in ("FAILED", "COMPLETED", "")):
        return green("job", f"{name} ran on {outcome.node or 'a node'}", **values)
    how = outcome.state or "in a way that Slurm no longer knows"
    where = f" on {outcome.node}" if outcome.node else ""
    code = f" with exit status {outcome.exit_code}" if outcome.exit_code else ""
    why = outcome.reason.replace("_", " ") if outcome.reason not in ("", "None") else ""
    return red(
        "job",
        f"{name} ended {how}{code}{where}{f' ({why})' if why else ''} before its checks",
        f"try again, on another node with --nodelist; if it fails again, {_ASK} and name the job",
        **values,
    )


def _judge_given_up(
    outcome: JobOutcome, asked: DoctorQuestion, name: str, values: dict[str, object]
) -> Finding:
    after = f"{outcome.took_s:.0f} s"
    if outcome.state != "PENDING":
        return red(
            "job",
            f"{name} is {outcome.state or 'not over'} after {after}, and was cancelled",
            f"give it more time with --timeout; if that does not help, {_ASK} to look at "
            f"{outcome.node or 'the node'}",
            **values,
        )
    word = "" if outcome.reason in ("None", "(null)") else normalise_reason(outcome.reason)
    reason = find_reason(word)
    meaning = f"{reason.meaning} ({word})" if reason else f"Slurm's reason is {word or 'not known'}"
    what = f"{name} did not start within {after}, and was cancelled: {meaning}"
    advice = reason.advice if reason else ""
    if is_hopeless(outcome.reason):
        other = "name another --partition, --account, --qos, --gres or --nodelist"
        return red("job", what, f"{advice}; or {other}" if advice else other, **values)
    return yellow(
        "job",
        what,
        "nothing is known about the nodes",
        f"wait longer with --timeout={2 * asked.timeout_s:.0f}, or look where there is room: "
        "sinfo shows idle nodes, --partition and --nodelist name them",
        **values,
    )


def is_hopeless(reason: str) -> bool:
    """A job with this reason does not start by waiting."""
    return re.split(r"[,:( ]", normalise_reason(reason), maxsplit=1)[0] in NEVER
