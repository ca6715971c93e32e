"""`csub admin show-config` and `log`: what holds on this node, and what happened on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from slurm_colloc import __version__
from slurm_colloc.administration.audit_view import (
    AuditFilter,
    parse_user,
    read_entries,
    render_entries,
)
from slurm_colloc.administration.hook_metrics import NodeFacts, build_families, render_families
from slurm_colloc.administration.hooks_in_use import list_jobs_with_state
from slurm_colloc.administration.node_files import read_record, write_whole
from slurm_colloc.administration.node_paths import find_places
from slurm_colloc.administration.totals_file import count_log, read_totals, write_totals
from slurm_colloc.cli.admin.admin_hooks import need_root
from slurm_colloc.cli.admin.admin_node import find_place, list_places
from slurm_colloc.errors import CollocError, NotFound, StateError, UsageProblem
from slurm_colloc.host.hooks.hook_report import HookPlace
from slurm_colloc.host.hooks.node_policy import NodePolicy, read_policy


def show_config(options: argparse.Namespace) -> int:
    """Print the policy.

    Raises:
        StateError: The hooks cannot use it.
    """
    places = find_places(os.environ)
    path = options.policy or list_places(places)[0].policy
    rows = describe_policy(path)
    record = read_record(places)
    hooks = None if record is None else record["hooks"]
    if options.json:
        value = {"schema": 1, "policy": [dataclasses.asdict(row) for row in rows], "hooks": hooks}
        sys.stdout.write(json.dumps(value) + "\n")
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
    widths = [max(len(cell[number]) for cell in cells) for number in range(2)]
    for name, shown, source in cells:
        sys.stdout.write(f"{name:<{widths[0]}}  {shown:<{widths[1]}}  {source}\n")
    for kind, hook in sorted((hooks or {}).items(), reverse=True):
        sys.stdout.write(f"{kind}: {hook}\n")
    if hooks is None:
        sys.stdout.write("no hooks are installed on this machine\n")
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
            sys.stdout.write(json.dumps(entry) + "\n")
    elif entries:
        sys.stdout.write(render_entries(entries))
    else:
        sys.stderr.write("csub: no line matches\n")
    if damaged:
        lines = "line" if damaged == 1 else "lines"
        sys.stderr.write(f"csub: {damaged} {lines} of {path} cannot be read\n")
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


def describe_policy(path: str) -> list[PolicyRow]:
    """All values, in the order in which they are declared.

    Raises:
        StateError: The hooks cannot use the file, so they do nothing; with the reason.
    """
    policy = read_policy(path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = find_lines(file.read())
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    rows = []
    for field in dataclasses.fields(NodePolicy):
        line = lines.get(field.name)
        value = getattr(policy, field.name)
        if isinstance(value, tuple):
            value = list(value)
        rows.append(PolicyRow(field.name, value, "built-in" if line is None else path, line))
    return rows


def find_lines(text: str) -> dict[str, int]:
    """The line on which each key of a TOML file without tables begins."""
    found: dict[str, int] = {}
    known = {field.name for field in dataclasses.fields(NodePolicy)}
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"""\s*["']?(\w+)["']?\s*=""", line)
        if match and match[1] in known:
            found.setdefault(match[1], number)
    return found


def render_value(value: Any) -> str:
    """A value as the file would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{word}"' for word in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


_SUFFIX = ".prom"


def show_metrics(options: argparse.Namespace) -> int:
    """Print the metrics of this node, or write them where node_exporter finds them.

    Raises:
        CollocError: It is not root, the log cannot be read, or the file cannot be written.
    """
    need_root("read what the hooks have done", hint="call it with sudo, or from a timer of root's")
    if options.output and not options.output.endswith(_SUFFIX):
        raise UsageProblem(
            f"{options.output} does not end with {_SUFFIX}",
            hint="node_exporter's textfile collector reads no other files",
        )
    places = find_places(os.environ)
    counted = count_log(find_log(), read_totals(places.totals_path))
    families = build_families(counted.totals, _read_facts(find_place(places)))
    text = render_families(families)
    if not options.output:
        sys.stdout.write(text)
        return 0
    # First what is counted: a file that is missing once is not counted twice.
    write_totals(places.totals_path, counted)
    output = os.path.abspath(options.output)
    try:
        write_whole(output, text.encode(), 0o644)
    except OSError as error:
        raise StateError(f"cannot write {output}: {os.strerror(error.errno or 0)}") from error
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
