"""`csub admin uninstall`, and what it shares with `install-hooks`: which part, what Slurm says.

Also: `csub admin install-hooks`: hooks put in place, or what that would change; `csub admin
verify`: are the hooks of this node whole, and do they do what they should?.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_colloc.administration import node_files, slurm_conf, verify_hooks
from slurm_colloc.administration.hook_metrics import MetricFamily, render_families
from slurm_colloc.administration.node_files import Step, build_node_files
from slurm_colloc.administration.slurm_conf import (
    ControllerPlan,
    HookPlan,
    Places,
    find_places,
)
from slurm_colloc.administration.verify_hooks import FIRST_JOB_ID, FakeJob, Verification, choose_gpu
from slurm_colloc.errors import (
    CollocError,
    NodeError,
    NotFound,
    SlurmError,
    UsageProblem,
    failed_to,
)
from slurm_colloc.host.hooks.node_policy import NodePolicy, read_policy
from slurm_colloc.host.mps.daemon_limits import DaemonLimits, make_limited_groups
from slurm_colloc.host.system.control_groups import read_hierarchies, remove_groups
from slurm_colloc.model.late_definitions import asdict, dataclass, field, replace
from slurm_colloc.model.printable import escape_controls


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
        _take_back(options, slurm_conf.plan_removal(config, places, scripts))
    if node:
        if record is None:
            say(f"no hooks are installed here: there is no {places.here(places.record_path)}")
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
        from slurm_colloc.slurm.slurm_commands import SlurmAccess

        try:
            return SlurmAccess().read_config()
        except SlurmError as problem:
            raise SlurmError(
                problem.message,
                hint="call this where scontrol works, or name a file with what `scontrol show "
                "config` printed elsewhere: --slurm-config FILE",
            ) from problem
    with (
        failed_to("read", path, UsageProblem),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        pairs = [line.partition("=") for line in file]
    config = {name.strip(): value.strip() for name, separator, value in pairs if separator}
    if "SLURM_VERSION" not in config:
        raise UsageProblem(f"{path} is not what `scontrol show config` prints")
    return config


def restore_places(places: Places, record: Mapping[str, object] | None) -> Places:
    """The places as they were given when the hooks were installed."""
    if record is None:
        return places
    hooks = str(record.get("hooks_directory", ""))
    return replace(places, prefix=str(record["prefix"]), hooks=hooks)


def _uninstall_node(options: argparse.Namespace, places: Places, record: dict[str, object]) -> None:
    if not options.unreferenced:
        config = read_config(options.slurm_config)
        obstacles = slurm_conf.find_obstacles(record, slurm_conf.read_config_values(config), places)
        own = _read_own_conf(places, config.get("SLURM_CONF", ""))
        obstacles += slurm_conf.find_obstacles(record, slurm_conf.read_conf_values(own), places)
        obstacles = list(dict.fromkeys(obstacles))
        if obstacles:
            raise NodeError(
                f"the hooks are still needed: {'; '.join(obstacles)}, and the next job would "
                "drain this node",
                hint="first csub admin uninstall --controller and scontrol reconfigure",
            )
    jobs = slurm_conf.list_jobs_with_state(places.here(str(record["run"])))
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
        say(f"{word:<14} {places.here(step.path)} ({step.detail})")
    for path in (places.policy_path, places.log_path, places.totals_path, places.prefix_path):
        if os.path.lexists(places.here(path)):
            say(f"{'stays':<14} {places.here(path)}")


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
    for line in slurm_conf.render_lines(plan.changes):
        say(line)


def _take_back(options: argparse.Namespace, plan: ControllerPlan) -> None:
    if not plan.changes and not plan.problems:
        say("slurm.conf names no hook of ours as a script of its own: nothing to take back")
        return
    if not options.slurm_conf:
        if plan.problems:
            raise NodeError("; ".join(plan.problems))
        print_lines(plan, say)
        where = "on the controller alone: nodes get it" if plan.is_configless else "on all machines"
        say(f"# {where}; then: scontrol reconfigure")
        say("# then on every node: csub admin uninstall --node")
        return
    before = slurm_conf.read_conf(options.slurm_conf)
    names = [kind.capitalize() for kind in slurm_conf.KINDS]
    after = slurm_conf.restore_text(before, [*names, "PrologFlags", "PrologEpilogTimeout"])
    if after == before:
        if plan.problems:
            raise NodeError("; ".join(plan.problems))
        after = slurm_conf.change_text(before, plan.changes)
    _refuse_leftovers(options.slurm_conf, after, plan)
    _write(options, before, after)
    say("# then: scontrol reconfigure; then on every node: csub admin uninstall --node")


def _refuse_leftovers(path: str, text: str, plan: ControllerPlan) -> None:
    """What names our hooks outside our marks was written by hand, and is not ours to change."""
    taken = {(change.name.lower(), value) for change in plan.changes for value in change.before}
    taken -= {(change.name.lower(), value) for change in plan.changes for value in change.after}
    for kind, values in slurm_conf.read_conf_values(text).items():
        for value in values:
            if (kind, value) in taken:
                raise NodeError(
                    f"{path} would still have {kind.capitalize()}={value}",
                    hint="the file was changed since: take that line out by hand",
                )


def _write(options: argparse.Namespace, before: str, after: str) -> None:
    for line in render_difference(options.slurm_conf, before, after):
        say(line)
    if options.dry_run:
        return
    backup = slurm_conf.write_conf(options.slurm_conf, after)
    say(f"# changed {options.slurm_conf}; as it was: {backup}")


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


def say(text: str) -> None:
    """A line of the answer."""
    sys.stdout.write(f"{text}\n")


def say_json(value: object) -> None:
    """The answer for programs."""
    say(json.dumps(value))


def warn(text: str) -> None:
    """What to know besides."""
    sys.stderr.write(f"csub: {escape_controls(text)}\n")


def require_prom(path: str) -> None:
    """Refuse a file that node_exporter would not read; none at all is no file.

    Raises:
        UsageProblem: Its name has another end.
    """
    if path and not path.endswith(".prom"):
        raise UsageProblem(
            f"{path} does not end with .prom",
            hint="node_exporter's textfile collector reads no other files",
        )


def write_prom(path: str, families: Sequence[MetricFamily]) -> None:
    """Write metrics for node_exporter, at once.

    Raises:
        StateError: The file cannot be written.
    """
    with failed_to("write", path):
        node_files.write_whole(os.path.abspath(path), render_families(families).encode(), 0o644)


# ---- `csub admin install-hooks`: hooks put in place, or what that would change -------------------
#
# What it says last, or `changed` of its JSON, tells a program whether something was changed; the
# exit status of `--check` whether something would be.

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
        self.steps.append({"part": part, **asdict(step)})
        self.must_change |= step.action not in _AS_IT_IS

    def say(self, text: str) -> None:
        if not self.is_quiet:
            say(escape_controls(text))

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
    plan = slurm_conf.plan_controller(
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
        say_json(value)
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
    return replace(hook, site_script=script)


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
        before = slurm_conf.read_conf(options.slurm_conf)
        changes = slurm_conf.find_missing(before, changes)
    where = options.slurm_conf or plan.slurm_conf or "slurm.conf"
    for change in changes:
        shown = "; ".join(f"{change.name}={value}" for value in change.after)
        outcome.add("controller", Step("set", where, f"{shown} ({change.reason})"))
    if changes and options.slurm_conf:
        after = slurm_conf.change_text(before, changes)
        for line in render_difference(options.slurm_conf, before, after):
            outcome.say(line)
        if not (options.dry_run or options.check):
            backup = slurm_conf.write_conf(options.slurm_conf, after)
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


# ---- `csub admin verify`: are the hooks of this node whole, and do they do what they should? -----


def verify(options: argparse.Namespace) -> int:
    """Look at everything, run the hooks once, print what was found; 0 where all is well.

    Raises:
        CollocError: There is nothing to verify, or no GPU to try it on.
    """
    need_root("run hooks as slurmd does")
    places = find_places(os.environ)
    record = node_files.read_record(places)
    if record is None:
        raise NotFound(
            f"no hooks are installed on this machine: there is no {places.record_path}",
            hint="csub admin install-hooks --node",
        )
    places = restore_places(places, record)
    try:
        user = pwd.getpwnam(options.user)
    except KeyError:
        raise UsageProblem(f"there is no user {options.user!r} on this machine") from None
    if user.pw_uid == 0:
        raise UsageProblem("the hooks never start a daemon for root", hint="name another --user")
    found = Verification(record["hooks"]["prolog"], record["hooks"]["epilog"])
    plans = [HookPlan(kind, record["hooks"][kind]) for kind in slurm_conf.KINDS]
    verify_hooks.check_files(found, build_node_files(places, plans))
    verify_hooks.check_python(found, places.prefix_path)
    policy = verify_hooks.check_policy(found, places.policy_path)
    config = _read_slurm(found)
    if config is not None:
        _check_slurm(found, record, config)
    if policy is not None:
        check_limits(found, policy, config or {})
    check_tracing(found)
    if found.passed and policy is not None:
        answer = verify_hooks.ask_nvml(places.prefix_path, places.driver)
        gpu = choose_gpu(answer, options.gpu, verify_hooks.read_held_gpus(places.run_path))
        job = FakeJob(
            job_id=str(FIRST_JOB_ID + os.getpid()),
            uid=user.pw_uid,
            gid=user.pw_gid,
            user=options.user,
            gpu=gpu,
            partition=options.partition or next(iter(policy.partitions), "verify"),
            account=options.account or next(iter(policy.accounts), "verify"),
            node=os.uname().nodename.partition(".")[0],
        )
        verify_hooks.try_hooks(found, job, policy, places.prefix_path)
    _report(found, as_json=options.json)
    if not found.passed:
        failed = [check.name for check in found.checks if check.outcome == "failed"]
        raise NodeError(f"the hooks of this node do not work yet: {', '.join(failed)}")
    return 0


def _read_slurm(found: Verification) -> Mapping[str, str] | None:
    """What the running Slurm is configured with; None where it cannot be asked."""
    try:
        return read_config("")
    except CollocError as problem:
        found.add("Slurm", ok=None, detail=f"not asked: {problem.message}")
        return None


def _check_slurm(found: Verification, record: dict[str, object], config: Mapping[str, str]) -> None:
    """Say whether Slurm calls the hooks; a node may be made ready before slurm.conf is."""
    places = find_places(os.environ)
    called = slurm_conf.find_callers(record, slurm_conf.read_config_values(config), places)
    for kind in slurm_conf.KINDS:
        detail = (
            f"{kind.capitalize()}={called[kind]}"
            if kind in called
            else (f"slurm.conf does not name the {kind} yet: csub admin install-hooks --controller")
        )
        found.add("Slurm", True if kind in called else None, detail)


def _report(found: Verification, *, as_json: bool) -> None:
    if as_json:
        checks = [asdict(check) for check in found.checks]
        say_json({"schema": 1, "passed": found.passed, "checks": checks})
        return
    for line in verify_hooks.render_checks(found.checks):
        say(line)


# What a node keeps a user's processes from, tried out: limits of root's daemons, tracing.
#
# One line each, with what to do where something is missing.

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
FIRST_WITH_RUN_IN_JOB = (24, 5)
_INSIDE_JOB = "PrologFlags=Alloc,Contain,RunInJob in slurm.conf"


def check_limits(found: Verification, policy: NodePolicy, slurm: Mapping[str, str]) -> None:
    """Try whether this node can limit a daemon, and say what it cannot.

    Args:
        found: The verification.
        policy: The node's policy.
        slurm: What `scontrol show config` says; empty where it was not asked.
    """
    if "runinjob" in slurm.get("PrologFlags", "").lower():
        found.add("limits", ok=True, detail="PrologFlags has RunInJob: the job's own limits hold")
        return
    limits = DaemonLimits((), policy.daemon_memory_mb, policy.daemon_processes, 1)
    made = make_limited_groups(read_hierarchies(), f"verify-{os.getpid()}", limits)
    left = remove_groups(made.paths)
    advice = f"; the job's own limits would hold with {_INSIDE_JOB}" if _has_flag(slurm) else ""
    if not made.missing:
        words = (
            f"a daemon gets the job's GPUs and CPUs, {policy.daemon_memory_mb} MiB of host memory, "
            f"{policy.daemon_processes} processes{advice}"
        )
        found.add("limits", ok=True, detail=words)
    else:
        # A site that requires them gets no daemon here.
        found.add(
            "limits",
            ok=False if policy.require_limits else None,
            detail=f"a daemon's {', '.join(made.missing)} cannot be limited "
            f"({made.why_missing}): {_advise(slurm)}",
        )
    for text in left:
        found.add("limits", ok=False, detail=text)


def _advise(slurm: Mapping[str, str]) -> str:
    first = "mount the cgroup controllers devices, memory and pids, or cgroup version 2"
    return f"{first}, or set {_INSIDE_JOB}" if _has_flag(slurm) else first


def _has_flag(slurm: Mapping[str, str]) -> bool:
    return slurm_conf.parse_release(slurm.get("SLURM_VERSION", "")) >= FIRST_WITH_RUN_IN_JOB


def check_tracing(found: Verification, path: str = YAMA) -> None:
    """Say whether a user's processes may trace each other.

    Args:
        found: The verification.
        path: Yama's setting.
    """
    try:
        with open(path, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        scope = ""
    if scope not in ("", "0"):
        found.add("Yama", ok=True, detail=f"kernel.yama.ptrace_scope is {scope}")
        return
    why = "is 0" if scope else "is not there: this kernel has no Yama"
    words = (
        f"kernel.yama.ptrace_scope {why}; one user's processes can trace each other, but not the "
        "daemons of root's prologs, which have a group id of their own"
    )
    advice = "; sysctl kernel.yama.ptrace_scope=1 forbids it" if scope else ""
    found.add("Yama", ok=None, detail=words + advice)
