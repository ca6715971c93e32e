"""What the login node tells, judged; pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.diagnosis.findings import Finding, green, red, unknown, yellow
from slurm_colloc.diagnosis.slurm_findings import Partition, judge_cgroup, judge_gres, judge_nodes
from slurm_colloc.slurm.slurm_nodes import NodeState

OLDEST, NEWEST = (22, 5), (26, 5)
"""The Slurm releases that csub is tested with."""

_ASK = "ask the administrators"


@dataclass(frozen=True)
class AskProblem:
    """Why something could not be asked.

    Attributes:
        message: What was wrong; empty for nothing.
        hint: What to do; may be empty.
    """

    message: str = ""
    hint: str = ""

    def __bool__(self) -> bool:
        return bool(self.message)


NO_ASK_PROBLEM = AskProblem()


@dataclass(frozen=True)
class LoginFacts:
    """What was asked on the login node.

    Attributes:
        version: Of csub.
        python: The version of its Python.
        executable: That Python.
        settings_files: The files that settings were read from.
        settings_trouble: What is wrong with them.
        client_version: Of Slurm's commands; None where there are none.
        client_trouble: Why not.
        config: `scontrol show config`; None where the controller did not answer.
        controller_trouble: Why not.
        answer_ms: How long it took to answer.
        access: The way to Slurm, `commands` or `pyslurm 25.5.0`, and why.
        access_trouble: Why the way that is set cannot be taken.
        nodes: All nodes; None where Slurm did not say.
        state_path: The state directory.
        state_shared: The settings say that nodes see it.
        state_trouble: Why it cannot be written.
    """

    version: str
    python: str
    executable: str
    settings_files: tuple[str, ...] = ()
    settings_trouble: AskProblem = NO_ASK_PROBLEM
    client_version: str | None = None
    client_trouble: AskProblem = NO_ASK_PROBLEM
    config: Mapping[str, str] | None = None
    controller_trouble: AskProblem = NO_ASK_PROBLEM
    answer_ms: float | None = None
    access: str = ""
    access_trouble: AskProblem = NO_ASK_PROBLEM
    nodes: tuple[NodeState, ...] | None = None
    state_path: str = ""
    state_shared: bool = True
    state_trouble: AskProblem = NO_ASK_PROBLEM


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
    ]


def judge_settings(facts: LoginFacts) -> Finding:
    """The settings can be read."""
    trouble = facts.settings_trouble
    if trouble:
        return red("settings", trouble.message, trouble.hint or "correct that file")
    names = ", ".join(facts.settings_files)
    return green("settings", names or "built-in values", files=list(facts.settings_files))


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
        trouble = facts.client_trouble
        return red(
            "slurm",
            trouble.message or "its version cannot be read",
            trouble.hint or "call csub where sbatch works",
        )
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
            trouble.message or "Slurm's controller does not answer",
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
    short = [
        f"~{path[len(home) :]}" if home and path.startswith(f"{home}{os.sep}") else path
        for path in paths
    ]
    return tuple(short)
