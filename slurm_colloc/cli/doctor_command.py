"""`csub doctor`: looks whether csub works here, and says what to do where it does not."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc import __version__
from slurm_colloc.cli.arguments import Json
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.terminal_tables import is_styled
from slurm_colloc.session.session import note, say
from slurm_colloc.settings import Settings

if TYPE_CHECKING:
    from slurm_colloc.diagnosis.login_findings import Finding, JobOutcome

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "unknown": "2"}
_CHECK_WIDTH, _LEVEL_WIDTH = 12, 7


def _option(name: str, short: str, help_text: str) -> Any:
    """An option of sbatch's, with the variable that sbatch reads, too."""
    variable = f"SBATCH_{name.upper()}"
    words = [f"--{name}", *([short] if short else [])]
    return typer.Option(*words, envvar=variable, show_envvar=False, help=help_text)


def doctor(  # noqa: PLR0917 - typer makes options of them
    partition: Annotated[str, _option("partition", "-p", "Check this partition.")] = "",
    account: Annotated[str, _option("account", "-A", "The account of the job.")] = "",
    qos: Annotated[str, _option("qos", "-q", "Its QoS.")] = "",
    gres: Annotated[
        str, _option("gres", "", "What it asks for; a GPU where there is one, none for no GPU.")
    ] = "",
    constraint: Annotated[str, _option("constraint", "-C", "Features of the node.")] = "",
    reservation: Annotated[str, _option("reservation", "", "Its reservation.")] = "",
    nodelist: Annotated[str, typer.Option("--nodelist", "-w", help="Check this node.")] = "",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the job.")
    ] = 120.0,
    no_job: Annotated[
        bool, typer.Option("--no-job", help="Check from this machine only, and submit no job.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check whether csub works on this machine and on a node, with one job of a few seconds."""
    if not 1 <= timeout <= 86400:
        raise UsageProblem(f"--timeout={timeout:g} must be from 1 to 86400 seconds")
    options = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "constraint": constraint,
        "reservation": reservation,
        "nodelist": nodelist,
    }
    sys.exit(examine(options, gres, timeout, no_job=no_job, as_json=as_json))


def _count_gpus(gres: str) -> int:
    from slurm_colloc.model.quantities import parse_gpu_request

    try:
        return parse_gpu_request(gres).count
    except ValueError as error:
        raise UsageProblem(f"--gres={gres}: {error}") from error


def examine(
    options: Mapping[str, str], gres: str, timeout_s: float, *, no_job: bool, as_json: bool
) -> int:
    """Look at everything and say it; the exit status.

    Args:
        options: Options of sbatch for the job.
        gres: What `--gres` says; empty where it was not given.
        timeout_s: How long to wait for the job.
        no_job: Submit none.
        as_json: Print one JSON object at the end, instead of lines as they come.
    """
    from slurm_colloc.diagnosis.doctor_job import ask_login
    from slurm_colloc.diagnosis.login_findings import (
        choose_partition,
        compute_exit_status,
        judge_login,
    )
    from slurm_colloc.diagnosis.node_findings import find_obstacle, judge_no_job

    def tell(new: Sequence[Finding]) -> None:
        findings.extend(new)
        if not as_json:
            say(render(new, coloured=is_styled(sys.stdout)), styled=is_styled(sys.stdout))
            sys.stdout.flush()

    findings: list[Finding] = []
    outcome: JobOutcome | None = None
    gpus = _count_gpus(gres) if gres else None
    facts, settings = ask_login()
    place = None if facts.nodes is None else choose_partition(facts.nodes, options["partition"])
    tell(judge_login(facts, place))
    why = "--no-job was given" if no_job else find_obstacle(findings)
    if why:
        tell(judge_no_job(why))
    else:
        if gpus is None:
            gpus = 1 if place is not None and place.gpus else 0
            gres = "gpu:1" if gpus else ""
        outcome, new = _look_at_node(options, gres, gpus, timeout_s, settings)
        tell(new)
    status = compute_exit_status(findings)
    if as_json:
        say(json.dumps(build_json(findings, outcome, status)))
    else:
        say(render_summary(findings))
    return status


def _look_at_node(
    options: Mapping[str, str], gres: str, gpus: int, timeout_s: float, settings: Settings
) -> tuple[JobOutcome, list[Finding]]:
    from slurm_colloc.diagnosis.doctor_job import run_job
    from slurm_colloc.diagnosis.login_findings import DoctorQuestion
    from slurm_colloc.diagnosis.node_findings import judge_outcome

    asked = DoctorQuestion(
        version=__version__,
        python=settings.python,
        place="",
        gpus=gpus,
        launcher=settings.launcher,
        share=settings.share,
        timeout_s=timeout_s,
    )
    # The job is taken away whatever ends this call: all of them are Ctrl-C to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    outcome, asked = run_job(options, gres, asked, settings, _note_waiting)
    return outcome, judge_outcome(outcome, asked)


def _note_waiting(text: str) -> None:
    if sys.stderr.isatty():
        note(text)


def render(findings: Sequence[Finding], *, coloured: bool = False) -> str:
    """The lines of some findings."""
    indent = " " * (_LEVEL_WIDTH + _CHECK_WIDTH + 4)
    lines = []
    for finding in findings:
        level = finding.level.value.ljust(_LEVEL_WIDTH)
        if coloured:
            level = f"\x1b[{_COLOURS[finding.level.value]}m{level}\x1b[0m"
        what, lost, advice = map(escape_controls, (finding.what, finding.lost, finding.advice))
        lines.append(f"{level}  {finding.check.ljust(_CHECK_WIDTH)}  {what}")
        lines += [f"{indent}effect: {lost}"] if lost else []
        lines += [f"{indent}-> {advice}"] if advice else []
    return "\n".join(lines)


def render_summary(findings: Sequence[Finding]) -> str:
    """The last line: how many of each level."""
    counts = dict.fromkeys(_COLOURS, 0)
    for finding in findings:
        counts[finding.level.value] += 1
    said = [f"{count} {level}" for level, count in counts.items() if count]
    if counts["red"]:
        verdict = "csub does not work properly here"
    elif counts["unknown"]:
        verdict = "csub works here, as far as could be seen"
    else:
        verdict = "csub works here"
    return f"\n{', '.join(said)}: {verdict}"


def build_json(
    findings: Sequence[Finding], outcome: JobOutcome | None, status: int
) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes."""
    return {
        "schema": 1,
        "exit_status": status,
        "job_id": (outcome.job_id or None) if outcome else None,
        "node": (outcome.node or None) if outcome else None,
        "findings": [
            {
                "check": finding.check,
                "level": finding.level.value,
                "what": finding.what,
                "lost": finding.lost or None,
                "advice": finding.advice or None,
                "values": dict(finding.values),
            }
            for finding in findings
        ],
    }
