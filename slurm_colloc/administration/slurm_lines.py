"""Which lines slurm.conf needs for the hooks, from what `scontrol show config` says; pure."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_colloc.administration.node_paths import Places

HookKind = Literal["prolog", "epilog"]
KINDS: tuple[HookKind, ...] = ("prolog", "epilog")

SITE_LINK = "50-site"
"""The name of the site's own script in a directory that we had to make."""

_FIRST_WITH_SEVERAL_LINES = (24, 5)
_NO_TIMEOUT = "65534"
_ALLOCATING_FLAGS = frozenset({"alloc", "contain", "x11", "runinjob"})
_TIMEOUT_S = 60
# Scripts of one directory run from z to a (slurm.conf(5)). Our prolog comes last, when the site's
# checks have passed; our epilog first, before the site's can fail and leave it out.
_NAMES: Mapping[HookKind, tuple[str, ...]] = {
    "prolog": ("00-slurm_colloc.sh", "00-slurm_colloc", "00slurm_colloc.sh", "00slurm_colloc"),
    "epilog": (
        "zz-slurm_colloc.sh",
        "zz-slurm_colloc",
        "99-slurm_colloc.sh",
        "99-slurm_colloc",
        "99slurm_colloc.sh",
    ),
}


@dataclass(frozen=True)
class HookPlan:
    """Where one of our hooks goes.

    Args:
        kind: Which.
        path: The file, on every node.
        configured: What Slurm has now, a value for each line.
        wanted: What it should have.
        site_link: A link to the site's own script that belongs next to the file; empty for none.
        site_script: What it leads to; empty where that is not known here.
        problem: Why there is no way; empty where there is one.
    """

    kind: HookKind
    path: str
    configured: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    site_link: str = ""
    site_script: str = ""
    problem: str = ""


@dataclass(frozen=True)
class LineChange:
    """One setting of slurm.conf.

    Args:
        name: Its name.
        before: Its values now, one for each line.
        after: Its values as they should be; none to take it out.
        reason: Why.
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ControllerPlan:
    """What slurm.conf needs.

    Args:
        slurm_conf: The file that the controller was started with.
        version: Slurm's release.
        is_configless: Nodes get the file from the controller.
        hooks: Where the hooks go.
        changes: Lines to change; empty where all is there.
        problems: What has to be mended first.
        notes: What to know.
    """

    slurm_conf: str
    version: str
    is_configless: bool
    hooks: tuple[HookPlan, ...]
    changes: tuple[LineChange, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def read_values(config: Mapping[str, str], name: str) -> tuple[str, ...]:
    """All values of a setting: `Prolog`, or `Prolog[0]`, `Prolog[1]` from 24.05 on."""
    numbered = []
    for key, value in config.items():
        match = re.fullmatch(rf"{name}\[(\d+)\]", key)
        if match:
            numbered.append((int(match[1]), value))
    values = [value for _, value in sorted(numbered)] or [config.get(name, "(null)")]
    return tuple(value for value in values if value not in ("", "(null)"))


def parse_release(text: str) -> tuple[int, int]:
    """Read `22.05.8` as (22, 5); (0, 0) where it is something else."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def is_configless(config: Mapping[str, str]) -> bool:
    """Whether nodes get slurm.conf from the controller."""
    return "enable_configless" in config.get("SlurmctldParameters", "").lower()


def is_glob(path: str) -> bool:
    """It names several files."""
    return any(letter in path for letter in "*?[")


def plan_hook(
    kind: HookKind, configured: Sequence[str], release: tuple[int, int], places: Places
) -> HookPlan:
    """Find a place for a hook among what the site has."""
    values = tuple(configured)
    own_file = f"{places.hooks_path}/{kind}.sh"
    own_directory = f"{places.hooks_path}/{kind}.d"
    own_glob, own_link = f"{own_directory}/*", f"{own_directory}/{SITE_LINK}"
    inside = f"{own_directory}/{_NAMES[kind][0]}"
    if own_file in values:
        return HookPlan(kind, own_file, values, values)
    if own_glob in values:
        return HookPlan(kind, inside, values, values, own_link)
    for value in values:
        directory, pattern = os.path.split(value)
        if value.startswith("/") and is_glob(pattern) and not is_glob(directory):
            for name in _NAMES[kind]:
                if fnmatch.fnmatchcase(name, pattern):
                    return HookPlan(kind, f"{directory}/{name}", values, values)
    if not values:
        return HookPlan(kind, own_file, values, (own_file,))
    if release >= _FIRST_WITH_SEVERAL_LINES:
        wanted = (*values, own_file) if kind == "prolog" else (own_file, *values)
        return HookPlan(kind, own_file, values, wanted)
    setting, value = kind.capitalize(), values[0]
    if not value.startswith("/"):
        problem = f"{setting}={value} is a relative path: name it absolutely, then call this again"
    elif is_glob(value):
        problem = (
            f"{setting}={value} matches none of the names that ours could have "
            f"({', '.join(_NAMES[kind])}): widen the pattern, then call this again"
        )
    else:
        return HookPlan(kind, inside, values, (own_glob,), own_link, value)
    return HookPlan(kind, "", values, values, problem=problem)


def plan_controller(
    config: Mapping[str, str], places: Places, *, deadline_s: float = 20.0
) -> ControllerPlan:
    """Say what slurm.conf needs.

    Args:
        config: What `scontrol show config` says.
        places: Where things lie on nodes.
        deadline_s: How long one of our hooks may take.
    """
    release = parse_release(config.get("SLURM_VERSION", ""))
    hooks = tuple(
        plan_hook(kind, read_values(config, kind.capitalize()), release, places) for kind in KINDS
    )
    changes = [
        LineChange(hook.kind.capitalize(), hook.configured, hook.wanted, _explain_hook(hook))
        for hook in hooks
        if hook.wanted != hook.configured
    ]
    problems = [hook.problem for hook in hooks if hook.problem]
    notes: list[str] = []
    flags = [flag for flag in ",".join(read_values(config, "PrologFlags")).split(",") if flag]
    folded = {flag.lower() for flag in flags}
    if not folded & _ALLOCATING_FLAGS:
        after = (",".join([*flags, "Alloc"]),)
        before = (",".join(flags),) if flags else ()
        reason = "the prolog has to be over when the batch script starts"
        changes.append(LineChange("PrologFlags", before, after, reason))
    user = config.get("SlurmdUser", "root(0)")
    if not user.endswith("(0)"):
        problems.append(
            f"SlurmdUser={user.partition('(')[0]}: hooks run as that user and could not act for "
            "others; they need SlurmdUser=root"
        )
    changes += _plan_timeout(config, hooks, notes, deadline_s)
    notes += _find_notes(config, folded)
    return ControllerPlan(
        slurm_conf=config.get("SLURM_CONF", ""),
        version=config.get("SLURM_VERSION", ""),
        is_configless=is_configless(config),
        hooks=hooks,
        changes=tuple(changes),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def plan_removal(
    config: Mapping[str, str], places: Places, site_scripts: Mapping[str, str]
) -> ControllerPlan:
    """Say which lines of slurm.conf have to go before the hooks may.

    Only Prolog and Epilog are taken back: other lines may have users of their own by now.

    Args:
        config: What `scontrol show config` says.
        places: Where things lie on nodes.
        site_scripts: The site's own script by kind of hook, where it was moved into a directory.
    """
    changes, problems, hooks = [], [], []
    for kind in KINDS:
        values = read_values(config, kind.capitalize())
        hooks.append(plan_hook(kind, values, (0, 0), places))
        after = []
        for value in values:
            if value == f"{places.hooks_path}/{kind}.d/*":
                script = site_scripts.get(kind, "")
                if script:
                    after.append(script)
                else:
                    problems.append(
                        f"{kind.capitalize()}={value} holds the site's own script under a link, "
                        f"which this machine does not have: see {SITE_LINK} on a node"
                    )
            elif value != f"{places.hooks_path}/{kind}.sh":
                after.append(value)
        if tuple(after) != values:
            changes.append(LineChange(kind.capitalize(), values, tuple(after), "as it was before"))
    return ControllerPlan(
        slurm_conf=config.get("SLURM_CONF", ""),
        version=config.get("SLURM_VERSION", ""),
        is_configless=is_configless(config),
        hooks=tuple(hooks),
        changes=tuple(changes),
        problems=tuple(problems),
        notes=(),
    )


def _explain_hook(hook: HookPlan) -> str:
    if hook.site_link:
        return f"a directory with ours and, as {SITE_LINK}, {hook.site_script}"
    if not hook.configured:
        return f"the {hook.kind}"
    order = "after" if hook.kind == "prolog" else "before"
    return f"ours runs {order} the site's own"


def _plan_timeout(
    config: Mapping[str, str], hooks: Sequence[HookPlan], notes: list[str], deadline_s: float
) -> list[LineChange]:
    """A time limit where there is none and no other script could need longer."""
    common = config.get("PrologEpilogTimeout", _NO_TIMEOUT)
    limits = [config.get(f"{kind.capitalize()}Timeout", common) for kind in KINDS]
    if all(limit == _NO_TIMEOUT for limit in limits):
        if any(hook.configured and hook.path not in hook.configured for hook in hooks):
            notes.append(
                "PrologEpilogTimeout is not set, so a prolog that hangs hangs for ever; set it to "
                f"more than {deadline_s:g} s and more than the site's own scripts need"
            )
            return []
        reason = f"ours end by themselves after {deadline_s:g} s"
        return [LineChange("PrologEpilogTimeout", (), (str(_TIMEOUT_S),), reason)]
    for kind, limit in zip(KINDS, limits, strict=True):
        if limit.isdigit() and limit != _NO_TIMEOUT and int(limit) <= deadline_s:
            notes.append(
                f"Slurm ends a {kind} after {limit} s, and ours takes up to {deadline_s:g} s: "
                "set deadline_s in node.toml well below it, with mig_slow_s where jobs get MIG"
            )
    return []


def _find_notes(config: Mapping[str, str], flags: set[str]) -> list[str]:
    gres = {word.strip().lower() for word in config.get("GresTypes", "").split(",")}
    notes = [
        f"GresTypes has {name}: one GPU can then belong to several jobs, so keep "
        "exclusive_process = false in node.toml on nodes that offer it"
        for name in sorted(gres & {"mps", "shard"})
    ]
    if "nohold" in flags:
        notes.append(
            "PrologFlags has NoHold: salloc does not wait for the prolog, and may find no daemon"
        )
    if "runinjob" in flags:
        notes.append("PrologFlags has RunInJob: hooks run in the job's cgroup, and see its GPUs")
    if is_configless(config):
        notes.append(
            "nodes get slurm.conf from the controller, but no script that it names by an absolute "
            "path, as it names ours: each node needs them in its own file system"
        )
    if "nohold_on_prolog_fail" not in config.get("SchedulerParameters", ""):
        notes.append(
            "a prolog that fails holds its job; SchedulerParameters=nohold_on_prolog_fail lets it "
            "start elsewhere"
        )
    return notes
