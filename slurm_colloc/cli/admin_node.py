"""`csub admin status` and `recover`: what hooks have prepared on this node, and its end.

Also: `csub admin show-config` and `log`: what holds on this node, and what happened on it.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_colloc import __version__
from slurm_colloc.administration.hook_metrics import (
    NodeFacts,
    build_families,
    count_log,
    read_totals,
    render_families,
    write_totals,
)
from slurm_colloc.administration.node_files import read_record
from slurm_colloc.administration.slurm_conf import Places, find_places, list_jobs_with_state
from slurm_colloc.administration.verify_hooks import (
    AuditFilter,
    parse_user,
    read_entries,
    render_entries,
)
from slurm_colloc.cli.admin_hooks import (
    need_root,
    require_prom,
    say,
    say_json,
    warn,
    write_prom,
)
from slurm_colloc.errors import CollocError, NotFound, UsageProblem, failed_to
from slurm_colloc.host.hooks.audit_log import write_audit
from slurm_colloc.host.hooks.hook_report import DRIVER_VARIABLE, HookPlace, HookReport
from slurm_colloc.host.hooks.node_policy import SETTINGS, NodePolicy, read_policy
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.model.printable import align_columns, escape_controls
from slurm_colloc.model.quantities import format_count, format_moment
from slurm_colloc.runtime.node_daemon import POLICY_VARIABLE, RUN_VARIABLE

NOT_FIT = 1
"""How `recover` ends where the node is not fit for jobs, as a hook does."""

_AS_ROOT = "call it with sudo"


def show_status(options: argparse.Namespace) -> int:
    """Print what hooks have prepared for jobs of this node.

    Raises:
        CollocError: It is not root, or the run directory cannot be believed.
    """
    need_root("see what the hooks have prepared", hint=_AS_ROOT)
    from slurm_colloc.host.hooks.whole_node import build_status

    places = list_places(find_places(os.environ))
    statuses = [build_status(place) for place in places]
    for place, found in zip(places, statuses, strict=True):
        for job in found["jobs"]:
            job.setdefault("made_at", _read_made_at(place.run, job["job_id"]))
    # Several nodes of a sandbox are on this machine.
    status = {**statuses[0], "jobs": [job for found in statuses for job in found["jobs"]]}
    if options.json:
        say_json(status)
    else:
        sys.stdout.write(render_status(status, _name_user))
    return 0


def recover_node(options: argparse.Namespace) -> int:
    """Undo what jobs have left that are gone; 0 where the node is fit for jobs.

    Raises:
        CollocError: It is not root, or the run directory cannot be believed.
    """
    need_root("undo what jobs have left", hint=_AS_ROOT)
    from slurm_colloc.host.hooks.whole_node import run_recover

    place = find_place(find_places(os.environ))
    # As the unit of systemd does it.
    os.umask(0o077)
    os.chdir("/")
    started = time.monotonic()
    report, told = run_recover(place, os.environ.get("SLURMD_NODENAME", ""))
    problem = _leave_line(place, report, time.monotonic() - started)
    unsafe = list_unsafe(told)
    is_fit = not report.exit_status
    about_mig = report.details.get("mig", [])
    if options.json:
        value = {"schema": 1, "is_fit": is_fit, "jobs": told, "mig": about_mig}
        say_json(value)
    else:
        for found in told:
            say(describe_recovered_job(found))
        for text in about_mig:
            say(escape_controls(text))
        if not told and not about_mig:
            say("nothing is prepared")
    if problem:
        warn(f"the audit log has no line of this: {problem}")
    if is_fit:
        return 0
    warn(
        f"this node is not fit for jobs: {'; '.join(unsafe) or report.outcome}: keep it drained, "
        "end what holds the GPU or reboot, then call this again, csub admin verify, and scontrol "
        "update NodeName=NODE State=RESUME"
    )
    return NOT_FIT


def find_place(places: Places) -> HookPlace:
    """Where the hooks of this node work; see `list_places`.

    Raises:
        StateError: The record of what was installed cannot be read.
        UsageProblem: They are those of a sandbox with several nodes, and none is named.
    """
    first, *others = list_places(places)
    if others:
        names = ", ".join(os.path.basename(place.run) for place in (first, *others))
        raise UsageProblem(
            f"this sandbox has several nodes: {names}", hint="SLURMD_NODENAME=NODE csub admin ..."
        )
    return first


def list_places(places: Places) -> list[HookPlace]:
    """Where the installed hooks work; where they usually would if none are installed.

    In a sandbox they are its own, which has several nodes on one machine.

    Raises:
        StateError: The record of what was installed cannot be read.
    """
    elsewhere, run = os.environ.get(POLICY_VARIABLE), os.environ.get(RUN_VARIABLE, "")
    if elsewhere and run and not places.base:
        driver = os.environ.get(DRIVER_VARIABLE, "")
        return [HookPlace(found, elsewhere, driver) for found in _list_runs(run)]
    return [_find_installed(places)]


def _list_runs(run: str) -> list[str]:
    node = os.environ.get("SLURMD_NODENAME", "")
    if "%n" not in run or node:
        return [run.replace("%n", node)]
    folder = run.partition("/%n")[0]
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        names = []
    # None has prepared anything yet.
    return [f"{folder}/{name}" for name in names] or [folder]


def _find_installed(places: Places) -> HookPlace:
    record = read_record(places) or {}
    run, policy = record.get("run"), record.get("policy")
    return HookPlace(
        run=run if isinstance(run, str) else places.run_path,
        policy=policy if isinstance(policy, str) else places.policy_path,
        driver=places.driver,
    )


def _leave_line(place: HookPlace, report: HookReport, took_s: float) -> str:
    """Write the audit log's line; why it could not be written, empty where it was."""
    try:
        log = read_policy(place.policy).audit_log
    except CollocError as error:
        report.details["policy"] = str(error)
        log = ""
    return write_audit(log, report.build_entry("recover", took_s, {}))


def _read_made_at(run: str, job_id: str) -> float | None:
    """When a job's prolog began, by its checkpoint (seconds since 1970)."""
    try:
        with open(f"{run}/jobs/{job_id}.json", "rb") as file:
            return float(json.loads(file.read())["made_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return "?"


# What hooks have prepared on a node, and what of that was undone, for people; pure.
#
# Nothing that a file holds reaches the terminal as it is: control characters are shown by number.

COLUMNS = ("job", "user", "phase", "mode", "gpus", "daemons", "since", "problem")
_NOT_OF_THIS_BOOT = "from before the last boot: csub admin recover"


def render_status(status: Mapping[str, Any], name_user: Callable[[int], str]) -> str:
    """A table of jobs, and a line on the policy.

    Args:
        status: What `host.hooks.whole_node.build_status` says; a job may have `made_at` too.
        name_user: Gives a user's name by number.
    """
    rows = [_build_row(job, name_user) for job in status["jobs"]]
    head = [name.upper() for name in COLUMNS]
    lines = align_columns([head, *rows]) if rows else ["nothing is prepared"]
    return "".join(f"{line}\n" for line in (*lines, describe_policy_state(status["policy"])))


def describe_policy_state(policy: Mapping[str, Any]) -> str:
    """One line on the policy: whether prologs prepare anything, or why not."""
    path = escape_controls(str(policy["path"]))
    if policy["problem"]:
        return f"policy: prologs prepare nothing: {escape_controls(str(policy['problem']))}"
    if policy["enabled"]:
        return f"policy: {path} is enabled"
    return f"policy: {path} has enabled = false: prologs prepare nothing, epilogs still undo"


def describe_recovered_job(found: Mapping[str, Any]) -> str:
    """What became of another job's leftovers, in one line."""
    reason = str(found["reason"])
    if found["undone"] is None:
        words = f"left alone: {reason}"
    elif found["undone"]:
        words = f"undone: {reason}"
    else:
        words = f"not all of it could be undone: {reason}"
    parts = [words]
    for name, title in (("unsafe", "NOT FIT"), ("left", "left behind"), ("notes", "note")):
        parts += [f"{title}: {text}" for text in found.get(name, ())]
    return escape_controls(f"job {found['job']}: {'; '.join(parts)}")


def list_unsafe(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the node is not fit for jobs, each with the job that has left it."""
    return [f"job {one['job']}: {text}" for one in found for text in one.get("unsafe", ())]


def _build_row(job: Mapping[str, Any], name_user: Callable[[int], str]) -> list[str]:
    uid = job["uid"]
    problems = [str(job["problem"])] if job["problem"] else []
    if not job["is_of_this_boot"] and not problems:
        problems.append(_NOT_OF_THIS_BOOT)
    pids = ["no answer" if pid is None else str(pid) for pid in job["daemon_pids"]]
    made_at = job.get("made_at")
    cells = [
        str(job["job_id"]),
        "" if uid is None else f"{name_user(uid)}({uid})",
        str(job["phase"]),
        str(job["mode"]),
        ",".join(_shorten_uuid(str(gpu)) for gpu in job["gpus"]),
        ",".join(pids),
        "" if made_at is None else format_moment(made_at),
        "; ".join(problems),
    ]
    return [escape_controls(cell) or "-" for cell in cells]


def _shorten_uuid(uuid: str) -> str:
    """As much as tells the GPUs of a node apart; JSON has the whole."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest.partition('-')[0]}" if kind in ("GPU", "MIG") and rest else uuid


# ---- `csub admin show-config` and `log`: what holds on this node, and what happened on it --------


def show_config(options: argparse.Namespace) -> int:
    """Print the policy.

    Raises:
        StateError: The hooks cannot use it.
    """
    places = find_places(os.environ)
    path = options.policy or list_places(places)[0].policy
    policy = read_policy(path)
    for told in policy.ignored:
        warn(f"{path}: {told}")
    rows = describe_policy(policy, path)
    record = read_record(places)
    hooks = None if record is None else record["hooks"]
    if options.json:
        value = {"schema": 1, "policy": [asdict(row) for row in rows], "hooks": hooks}
        say_json(value)
        return 0
    cells = [("SETTING", "VALUE", "FROM")]
    cells += [
        (
            row.name,
            render_value(row.value),
            row.source if row.line is None else f"{row.source}:{row.line}",
        )
        for row in rows
    ]
    for line in align_columns(cells):
        say(line)
    for kind, hook in sorted((hooks or {}).items(), reverse=True):
        say(f"{kind}: {hook}")
    if hooks is None:
        say("no hooks are installed on this machine")
    return 0


def show_log(options: argparse.Namespace) -> int:
    """Print what the hooks did.

    Raises:
        CollocError: There is no log, it cannot be read, or nothing can match.
    """
    if options.last is not None and options.last < 1:
        raise UsageProblem(f"--last is {options.last}, it must be at least 1")
    path = options.file or find_log()
    if not path:
        policy = list_places(find_places(os.environ))[0].policy
        raise NotFound(f"{policy} says that no log is kept (audit_log is empty)")
    uid = None if options.user is None else parse_user(options.user)
    wanted = AuditFilter(job=options.job, uid=uid, outcome=options.outcome, hook=options.hook)
    entries, damaged = read_entries(path, wanted)
    if options.last is not None:
        entries = entries[-options.last :]
    if options.json:
        for entry in entries:
            say_json(entry)
    elif entries:
        sys.stdout.write(render_entries(entries))
    else:
        warn("no line matches")
    if damaged:
        warn(f"{format_count(damaged, 'line')} of {path} cannot be read")
    return 0


def find_log() -> str:
    """Where the hooks of this machine leave their lines; empty where they leave none."""
    places = find_places(os.environ)
    try:
        return read_policy(list_places(places)[0].policy).audit_log
    except CollocError:
        # The hooks have no other place then either.
        return NodePolicy().audit_log if not places.base else places.log_path


@dataclass(frozen=True)
class PolicyRow:
    """One value.

    Args:
        name: Its name.
        value: What holds.
        source: `built-in`, or the file's path.
        line: Its line there; None for a built-in value.
    """

    name: str
    value: Any
    source: str
    line: int | None


def describe_policy(policy: NodePolicy, path: str) -> list[PolicyRow]:
    """All values, in the order in which they are declared.

    Raises:
        StateError: The file cannot be read any more.
    """
    with failed_to("read", path), open(path, encoding="utf-8") as file:
        lines = find_lines(file.read())
    rows = []
    for name in SETTINGS:
        line = lines.get(name)
        value = getattr(policy, name)
        if isinstance(value, tuple):
            value = list(value)
        rows.append(PolicyRow(name, value, "built-in" if line is None else path, line))
    return rows


def find_lines(text: str) -> dict[str, int]:
    """The line on which each key of a TOML file without tables begins."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"""\s*["']?(\w+)["']?\s*=""", line)
        if match and match[1] in SETTINGS:
            found.setdefault(match[1], number)
    return found


def render_value(value: Any) -> str:
    """A value as the file would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{word}"' for word in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def show_metrics(options: argparse.Namespace) -> int:
    """Print the metrics of this node, or write them where node_exporter finds them.

    Raises:
        CollocError: It is not root, the log cannot be read, or the file cannot be written.
    """
    need_root("read what the hooks have done", hint="call it with sudo, or from a timer of root's")
    require_prom(options.output)
    places = find_places(os.environ)
    counted = count_log(find_log(), read_totals(places.totals_path))
    families = build_families(counted.totals, _read_facts(find_place(places)))
    if not options.output:
        sys.stdout.write(render_families(families))
        return 0
    # First what is counted: a file that is missing once is not counted twice.
    write_totals(places.totals_path, counted)
    write_prom(os.path.abspath(options.output), families)
    return 0


def _read_facts(place: HookPlace) -> NodeFacts:
    try:
        is_valid, is_enabled = True, read_policy(place.policy).enabled
    except CollocError:
        is_valid = is_enabled = False
    return NodeFacts(
        jobs_prepared=len(list_jobs_with_state(place.run)),
        is_policy_valid=is_valid,
        is_enabled=is_enabled,
        version=__version__,
    )
