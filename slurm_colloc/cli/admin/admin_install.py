"""`csub admin install-hooks`: hooks put in place, or what that would change.

What it says last, or `changed` of its JSON, tells a program whether something was changed; the exit
status of `--check` whether something would be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from slurm_colloc.administration import node_files, slurm_lines, slurm_text
from slurm_colloc.administration.node_files import Step
from slurm_colloc.administration.node_paths import Places, find_places
from slurm_colloc.administration.node_plan import build_node_files
from slurm_colloc.administration.slurm_lines import ControllerPlan, HookPlan
from slurm_colloc.cli.admin.admin_hooks import (
    choose_parts,
    need_root,
    print_lines,
    read_config,
    render_difference,
)
from slurm_colloc.errors import CollocError, NodeError, UsageProblem
from slurm_colloc.host.hooks.node_policy import read_policy
from slurm_colloc.model.printable import escape_controls

CHANGE_NEEDED = 8
"""How `--check` ends where something would be changed; no exception of errors.py ends so."""

_DEADLINE_S = 20.0
_AS_IT_IS = ("same", "keep")
_THEN_RECONFIGURE = (
    "then: scontrol reconfigure",
    "first have the hooks on every node (csub admin install-hooks --node):",
    "a node without them would be drained by its next job",
)


@dataclass
class _Outcome:
    """What was done, or would be.

    Args:
        is_quiet: Only one JSON value is printed, at the end.
        steps: All steps, those that change nothing included.
        notes: What to know.
        must_change: Something is, or was, not as it should be.
        was_told: Lines of slurm.conf were only named, for people to put there.
    """

    is_quiet: bool
    steps: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    must_change: bool = False
    was_told: bool = False

    def add(self, part: str, step: Step) -> None:
        self.steps.append({"part": part, **dataclasses.asdict(step)})
        self.must_change |= step.action not in _AS_IT_IS

    def say(self, text: str) -> None:
        if not self.is_quiet:
            sys.stdout.write(f"{escape_controls(text)}\n")

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(f"note: {text}")


def install(options: argparse.Namespace) -> int:
    """Put the hooks in place, or say what that would do.

    Raises:
        CollocError: It cannot be done.
    """
    node, controller = choose_parts(options)
    only_says = options.dry_run or options.check
    places = find_places(os.environ, root=options.root, prefix=options.prefix, hooks=options.hooks)
    plan = slurm_lines.plan_controller(
        read_config(options.slurm_config), places, deadline_s=_read_deadline_s(places)
    )
    outcome = _Outcome(is_quiet=options.json)
    if node:
        _install_node(options, places, plan, outcome)
    if controller:
        _install_lines(options, plan, outcome)
    if options.json:
        value: dict[str, Any] = {
            "schema": 1,
            # As Ansible's own modules say it: with --check what would be.
            "changed": outcome.must_change and (only_says or not outcome.was_told),
            "only_said": only_says,
            "steps": outcome.steps,
            "notes": outcome.notes,
        }
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        outcome.say(_conclude(outcome, only_says=only_says))
    return CHANGE_NEEDED if options.check and outcome.must_change else 0


def _conclude(outcome: _Outcome, *, only_says: bool) -> str:
    if not outcome.must_change:
        return "nothing to change"
    if only_says:
        return "would change"
    if outcome.was_told:
        return "slurm.conf was not changed: name it with --slurm-conf, or put the lines there"
    return "changed"


def _install_node(
    options: argparse.Namespace, places: Places, plan: ControllerPlan, outcome: _Outcome
) -> None:
    hooks = [_complete(hook, options, places) for hook in plan.hooks]
    if plan.problems:
        raise NodeError("; ".join(plan.problems))
    files = build_node_files(places, hooks)
    steps = node_files.compare_files(places, files)
    steps.append(node_files.compare_record(places, files, hooks))
    only_says = options.dry_run or options.check
    if not only_says:
        need_root("install hooks")
    if options.check or not options.dry_run:
        _check_interpreter(places)
    if not only_says:
        node_files.install_files(places, files, hooks)
    for step in steps:
        outcome.add("node", step)
        word = step.action
        if only_says and word not in _AS_IT_IS:
            word = f"would {'make' if word == 'directory' else word}"
        outcome.say(f"{word:<14} {places.here(step.path)} ({step.detail})")
    if places.driver:
        outcome.note(f"these hooks take NVIDIA's library and programs from {places.driver}")


def _complete(hook: HookPlan, options: argparse.Namespace, places: Places) -> HookPlan:
    """Name the site's own script where slurm.conf has our directory already."""
    if not hook.site_link or hook.site_script:
        return hook
    script = getattr(options, f"site_{hook.kind}")
    link = places.here(hook.site_link)
    if not script and os.path.islink(link):
        script = os.readlink(link)
    if not script:
        raise UsageProblem(
            f"slurm.conf has our directory {os.path.dirname(hook.site_link)} already, and this "
            f"node does not know the site's own {hook.kind} that belongs there",
            hint=f"name it: --site-{hook.kind} FILE",
        )
    return dataclasses.replace(hook, site_script=script)


def _check_interpreter(places: Places) -> None:
    python = places.here(f"{places.prefix_path}/bin/python")
    if not os.access(python, os.X_OK):
        raise NodeError(
            f"there is no {python}, which the hooks start",
            hint="unpack the nodes' own installation first (docs/admin.md), or name it: --prefix",
        )


def _install_lines(options: argparse.Namespace, plan: ControllerPlan, outcome: _Outcome) -> None:
    """Say which lines slurm.conf needs, or change the file that was named."""
    if plan.problems:
        raise NodeError("; ".join(plan.problems))
    changes = list(plan.changes)
    before = ""
    if options.slurm_conf and changes:
        before = slurm_text.read_conf(options.slurm_conf)
        changes = slurm_text.find_missing(before, changes)
    where = options.slurm_conf or plan.slurm_conf or "slurm.conf"
    for change in changes:
        shown = "; ".join(f"{change.name}={value}" for value in change.after)
        outcome.add("controller", Step("set", where, f"{shown} ({change.reason})"))
    if changes and options.slurm_conf:
        after = slurm_text.change_text(before, changes)
        for line in render_difference(options.slurm_conf, before, after):
            outcome.say(line)
        if not (options.dry_run or options.check):
            backup = slurm_text.write_conf(options.slurm_conf, after)
            outcome.say(f"# changed {options.slurm_conf}; as it was: {backup}")
    elif changes:
        outcome.was_told = True
        print_lines(plan, outcome.say)
    elif plan.changes:
        outcome.say(f"{where} has all that is needed, and Slurm has not read it since")
        outcome.note("scontrol reconfigure is still to be called")
    else:
        outcome.say(f"{where} (Slurm {plan.version}) has all that is needed")
    if changes:
        nodes = "on the controller alone: nodes get it" if plan.is_configless else "on all machines"
        outcome.say(f"# {nodes}; {_THEN_RECONFIGURE[0]}")
        for text in _THEN_RECONFIGURE[1:]:
            outcome.say(f"# {text}")
    for note in plan.notes:
        outcome.note(note)


def _read_deadline_s(places: Places) -> float:
    """How long a hook may take on this machine, or what is built in."""
    try:
        return read_policy(places.here(places.policy_path)).longest_s
    except CollocError:
        return _DEADLINE_S
