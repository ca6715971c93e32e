"""`csub admin uninstall`, and what it shares with `install-hooks`: which part, what Slurm says."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping

from slurm_colloc.administration import hooks_in_use, node_files, slurm_lines, slurm_text
from slurm_colloc.administration.node_paths import Places, find_places
from slurm_colloc.administration.slurm_lines import ControllerPlan
from slurm_colloc.errors import NodeError, SlurmError, UsageProblem


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
        if not (options.dry_run or getattr(options, "check", False)):
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
        from slurm_colloc.slurm.slurm_commands import SlurmCommands

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


def _uninstall_node(options: argparse.Namespace, places: Places, record: dict[str, object]) -> None:
    if not options.unreferenced:
        config = read_config(options.slurm_config)
        obstacles = hooks_in_use.find_obstacles(
            record, hooks_in_use.read_config_values(config), places
        )
        own = _read_own_conf(places, config.get("SLURM_CONF", ""))
        obstacles += hooks_in_use.find_obstacles(record, hooks_in_use.read_conf_values(own), places)
        obstacles = list(dict.fromkeys(obstacles))
        if obstacles:
            raise NodeError(
                f"the hooks are still needed: {'; '.join(obstacles)}, and the next job would "
                "drain this node",
                hint="first csub admin uninstall --controller and scontrol reconfigure",
            )
    jobs = hooks_in_use.list_jobs_with_state(places.here(str(record["run"])))
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
    for path in (places.policy_path, places.log_path, places.totals_path, places.prefix_path):
        if os.path.lexists(places.here(path)):
            _say(f"{'stays':<14} {places.here(path)}")


def _read_own_conf(places: Places, path: str) -> str:
    """This machine's own slurm.conf, which slurmd reads at its next start; empty without one."""
    try:
        with open(places.here(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def print_lines(plan: ControllerPlan, say: Callable[[str], None]) -> None:
    """Say which lines slurm.conf needs, for people who put them there."""
    where = plan.slurm_conf or "slurm.conf"
    say(f"# {where} needs (Slurm {plan.version}; instead of lines of the same name):")
    for line in slurm_text.render_lines(plan.changes):
        say(line)


def _take_back(options: argparse.Namespace, plan: ControllerPlan) -> None:
    if not plan.changes and not plan.problems:
        _say("slurm.conf names no hook of ours as a script of its own: nothing to take back")
        return
    if not options.slurm_conf:
        if plan.problems:
            raise NodeError("; ".join(plan.problems))
        print_lines(plan, _say)
        where = "on the controller alone: nodes get it" if plan.is_configless else "on all machines"
        _say(f"# {where}; then: scontrol reconfigure")
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
    for kind, values in hooks_in_use.read_conf_values(text).items():
        for value in values:
            if (kind, value) in taken:
                raise NodeError(
                    f"{path} would still have {kind.capitalize()}={value}",
                    hint="the file was changed since: take that line out by hand",
                )


def _write(options: argparse.Namespace, before: str, after: str) -> None:
    for line in render_difference(options.slurm_conf, before, after):
        _say(line)
    if options.dry_run:
        return
    backup = slurm_text.write_conf(options.slurm_conf, after)
    _say(f"# changed {options.slurm_conf}; as it was: {backup}")


def render_difference(path: str, before: str, after: str) -> list[str]:
    """A file's change as `diff -u` shows it."""
    import difflib

    texts = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(*texts, path, path, lineterm=""))


def need_root(what: str, *, hint: str = "--dry-run shows what would be done") -> None:
    """Refuse where a user other than root asks.

    Args:
        what: What only root can do.
        hint: What to do instead.

    Raises:
        UsageProblem: It is not root.
    """
    if os.geteuid() != 0:
        raise UsageProblem(f"only root can {what}", hint=hint)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
