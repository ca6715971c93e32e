"""`csub admin install-hooks` and `uninstall`: the part on the node and the lines of slurm.conf."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from slurm_colloc.administration import node_files, removal, slurm_lines, slurm_text
from slurm_colloc.administration.node_plan import build_node_files
from slurm_colloc.administration.places import Places, find_places
from slurm_colloc.administration.slurm_lines import ControllerPlan, HookPlan
from slurm_colloc.errors import CollocError, NodeError, SlurmError, UsageProblem
from slurm_colloc.host.policy import read_policy

_DEADLINE_S = 20.0


def install(options: argparse.Namespace) -> int:
    """Put the hooks in place, or say what that would do.

    Raises:
        CollocError: It cannot be done.
    """
    node, controller = choose_parts(options)
    places = find_places(os.environ, root=options.root, prefix=options.prefix, hooks=options.hooks)
    plan = slurm_lines.plan_controller(
        read_config(options.slurm_config), places, deadline_s=_read_deadline_s(places)
    )
    if node:
        _install_node(options, places, plan)
    if controller:
        _tell_or_change(options, plan, _THEN_RECONFIGURE)
        for note in plan.notes:
            _say(f"note: {note}")
    return 0


def uninstall(options: argparse.Namespace) -> int:
    """Remove the hooks, or say what that would do.

    Raises:
        CollocError: It cannot be done, or Slurm still needs them.
    """
    node, controller = choose_parts(options)
    places = find_places(os.environ, root=options.root)
    record = node_files.read_record(places)
    places = restore_places(places, record)
    if controller:
        scripts = dict((record or {}).get("site_scripts", {}))
        config = read_config(options.slurm_config)
        _take_back(options, slurm_lines.plan_removal(config, places, scripts))
    if node:
        if record is None:
            _say(f"no hooks are installed here: there is no {places.here(places.record_path)}")
            return 0
        _uninstall_node(options, places, record)
    return 0


def choose_parts(options: argparse.Namespace) -> tuple[bool, bool]:
    """Which parts are meant: the node's and the controller's.

    Raises:
        UsageProblem: Nothing was said, or something contradicts itself.
    """
    if not options.node and not options.controller:
        if not options.dry_run:
            raise UsageProblem(
                "say which part: --node on every node, --controller for the lines of slurm.conf",
                hint="--dry-run alone shows both",
            )
        return True, True
    if options.slurm_conf and not options.controller:
        raise UsageProblem("--slurm-conf goes with --controller")
    return options.node, options.controller


def read_config(path: str) -> Mapping[str, str]:
    """What `scontrol show config` says, now or in a file.

    Raises:
        SlurmError: Slurm does not answer.
        UsageProblem: The file cannot be read.
    """
    if not path:
        from slurm_colloc.slurm.client import SlurmCommands

        try:
            return SlurmCommands().read_config()
        except SlurmError as problem:
            raise SlurmError(
                problem.message,
                hint="call this where scontrol works, or name a file with what `scontrol show "
                "config` printed elsewhere: --slurm-config FILE",
            ) from problem
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file]
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    config = {name.strip(): value.strip() for name, separator, value in pairs if separator}
    if "SLURM_VERSION" not in config:
        raise UsageProblem(f"{path} is not what `scontrol show config` prints")
    return config


def restore_places(places: Places, record: Mapping[str, object] | None) -> Places:
    """The places as they were given when the hooks were installed."""
    if record is None:
        return places
    hooks = str(record.get("hooks_directory", ""))
    return dataclasses.replace(places, prefix=str(record["prefix"]), hooks=hooks)


_THEN_RECONFIGURE = (
    "then: scontrol reconfigure",
    "first have the hooks on every node (csub admin install-hooks --node):",
    "a node without them would be drained by its next job",
)


def _install_node(options: argparse.Namespace, places: Places, plan: ControllerPlan) -> None:
    hooks = [_complete(hook, options, places) for hook in plan.hooks]
    if plan.problems:
        raise NodeError("; ".join(plan.problems))
    files = build_node_files(places, hooks)
    steps = node_files.compare_files(places, files)
    if not options.dry_run:
        need_root("install hooks")
        _check_interpreter(places)
        node_files.install_files(places, files, hooks)
    for step in steps:
        word = (
            step.action
            if not options.dry_run or step.action in ("same", "keep")
            else (f"would {'make' if step.action == 'directory' else step.action}")
        )
        _say(f"{word:<14} {places.here(step.path)} ({step.detail})")
    if places.simgpu:
        _say(f"note: these hooks see the simulated GPUs of {places.simgpu}")


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


def _uninstall_node(options: argparse.Namespace, places: Places, record: dict[str, object]) -> None:
    if not options.unreferenced:
        config = read_config(options.slurm_config)
        obstacles = removal.find_obstacles(record, removal.read_config_values(config), places)
        own = _read_own_conf(places, config.get("SLURM_CONF", ""))
        obstacles += removal.find_obstacles(record, removal.read_conf_values(own), places)
        obstacles = list(dict.fromkeys(obstacles))
        if obstacles:
            raise NodeError(
                f"the hooks are still needed: {'; '.join(obstacles)}, and the next job would "
                "drain this node",
                hint="first csub admin uninstall --controller and scontrol reconfigure",
            )
    jobs = removal.list_jobs_with_state(places.here(str(record["run"])))
    if jobs:
        raise NodeError(
            f"job {', '.join(jobs)} of this node still has what its prolog prepared, and needs the "
            "epilog",
            hint="wait for its end; for jobs that are gone: systemctl start slurm_colloc-recover",
        )
    steps = node_files.plan_file_removal(places, record)
    if not options.dry_run:
        need_root("remove hooks")
        node_files.remove_files(places, record)
    for step in steps:
        word = "would remove" if options.dry_run else "removed"
        _say(f"{word:<14} {places.here(step.path)} ({step.detail})")
    for path in (places.policy_path, places.log_path, places.prefix_path):
        if os.path.lexists(places.here(path)):
            _say(f"{'stays':<14} {places.here(path)}")


def _read_own_conf(places: Places, path: str) -> str:
    """This machine's own slurm.conf, which slurmd reads at its next start; empty without one."""
    try:
        with open(places.here(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _tell_or_change(
    options: argparse.Namespace, plan: ControllerPlan, words: Sequence[str]
) -> None:
    """Print the lines, or change the file that was named."""
    if plan.problems:
        raise NodeError("; ".join(plan.problems))
    if not plan.changes:
        _say(f"{plan.slurm_conf} (Slurm {plan.version}) has all that is needed")
        return
    if options.slurm_conf:
        before = slurm_text.read_conf(options.slurm_conf)
        after = slurm_text.change_text(before, plan.changes)
        _write(options, before, after)
    else:
        where = plan.slurm_conf or "slurm.conf"
        _say(f"# {where} needs (Slurm {plan.version}; instead of lines of the same name):")
        for line in slurm_text.render_lines(plan.changes):
            _say(line)
    where = "on the controller alone: nodes get it" if plan.is_configless else "on all machines"
    _say(f"# {where}; {words[0]}")
    for text in words[1:]:
        _say(f"# {text}")


def _take_back(options: argparse.Namespace, plan: ControllerPlan) -> None:
    if not plan.changes and not plan.problems:
        _say("slurm.conf names no hook of ours as a script of its own: nothing to take back")
        return
    if not options.slurm_conf:
        _tell_or_change(options, plan, ("then: scontrol reconfigure",))
        _say("# then on every node: csub admin uninstall --node")
        return
    before = slurm_text.read_conf(options.slurm_conf)
    names = [kind.capitalize() for kind in slurm_lines.KINDS]
    after = slurm_text.restore_text(before, [*names, "PrologFlags", "PrologEpilogTimeout"])
    if after == before:
        if plan.problems:
            raise NodeError("; ".join(plan.problems))
        after = slurm_text.change_text(before, plan.changes)
    _refuse_leftovers(options.slurm_conf, after, plan)
    _write(options, before, after)
    _say("# then: scontrol reconfigure; then on every node: csub admin uninstall --node")


def _refuse_leftovers(path: str, text: str, plan: ControllerPlan) -> None:
    """What names our hooks outside our marks was written by hand, and is not ours to change."""
    taken = {(change.name.lower(), value) for change in plan.changes for value in change.before}
    taken -= {(change.name.lower(), value) for change in plan.changes for value in change.after}
    for kind, values in removal.read_conf_values(text).items():
        for value in values:
            if (kind, value) in taken:
                raise NodeError(
                    f"{path} would still have {kind.capitalize()}={value}",
                    hint="the file was changed since: take that line out by hand",
                )


def _write(options: argparse.Namespace, before: str, after: str) -> None:
    import difflib

    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), options.slurm_conf, options.slurm_conf, lineterm=""
    )
    for line in lines:
        _say(line)
    if options.dry_run:
        return
    backup = slurm_text.write_conf(options.slurm_conf, after)
    _say(f"# changed {options.slurm_conf}; as it was: {backup}")


def _read_deadline_s(places: Places) -> float:
    """How long a hook may take on this machine, or what is built in."""
    try:
        return read_policy(places.here(places.policy_path)).deadline_s
    except CollocError:
        return _DEADLINE_S


def need_root(what: str) -> None:
    """Refuse where somebody else than root asks.

    Raises:
        UsageProblem: It is not root.
    """
    if os.geteuid() != 0:
        raise UsageProblem(f"only root can {what}", hint="--dry-run shows what would be done")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
