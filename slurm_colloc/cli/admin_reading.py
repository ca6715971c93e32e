"""`csub admin show-config` and `log`: what holds on this node, and what happened on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys

from slurm_colloc.administration.audit_view import (
    AuditFilter,
    parse_user,
    read_entries,
    render_entries,
)
from slurm_colloc.administration.node_files import read_record
from slurm_colloc.administration.places import find_places
from slurm_colloc.administration.policy_view import describe_policy, render_value
from slurm_colloc.errors import CollocError, NotFound, UsageProblem
from slurm_colloc.host.policy import Policy, read_policy


def show_config(options: argparse.Namespace) -> int:
    """Print the policy.

    Raises:
        StateError: The hooks cannot use it.
    """
    places = find_places(os.environ)
    path = options.policy or places.policy_path
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
        policy = find_places(os.environ).policy_path
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
        return read_policy(places.policy_path).audit_log
    except CollocError:
        # The hooks have no other place then either.
        return Policy().audit_log if not places.base else places.log_path
