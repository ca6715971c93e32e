"""Which lines slurm.conf needs for the hooks, from what `scontrol show config` says; pure.

Also: where everything of slurm_colloc lies on a node; changing a slurm.conf, and taking the change
back; the text is pure, one function writes; whether a node's hooks may go: nothing in Slurm may
still name them; mostly pure.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from slurm_colloc.errors import UsageProblem, failed_to
from slurm_colloc.host.hooks.hook_report import DRIVER_VARIABLE
from slurm_colloc.model.late_definitions import dataclass

# ---- Where everything of slurm_colloc lies on a node; pure ---------------------------------------

BASE_VARIABLE = "SLURM_COLLOC_BASE"
"""A directory that stands for `/` in all of these paths, to try an installation out next to the
machine's own. The hooks and the policy then name paths below it too."""

_PLAIN = re.compile(r"(?:/[A-Za-z0-9_.+@-]+)+")


@dataclass(frozen=True)
class Places:
    """Paths as a node sees them.

    Args:
        base: What stands for `/`; empty on real nodes.
        root: Where the node's file system lies while files are written, for the image of a
            diskless node; empty for this machine. No file names it.
        prefix: The nodes' own installation, with `bin/python`; empty for the usual one.
        hooks: Where our hooks lie unless the site has a directory of them; empty for the usual one.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
    """

    base: str = ""
    root: str = ""
    prefix: str = ""
    hooks: str = ""
    driver: str = ""

    @property
    def prefix_path(self) -> str:
        """The nodes' own installation."""
        return self.prefix or f"{self.base}/opt/slurm_colloc"

    @property
    def hooks_path(self) -> str:
        """Our own directory of hooks."""
        return self.hooks or f"{self.etc_path}/hooks"

    @property
    def etc_path(self) -> str:
        """Configuration."""
        return f"{self.base}/etc/slurm_colloc"

    @property
    def policy_path(self) -> str:
        """The node's policy."""
        return f"{self.etc_path}/node.toml"

    @property
    def record_path(self) -> str:
        """What was installed, for verifying and removing it."""
        return f"{self.etc_path}/installed.json"

    @property
    def run_path(self) -> str:
        """What jobs have on this node right now."""
        return f"{self.base}/run/slurm_colloc"

    @property
    def log_path(self) -> str:
        """One line for each run of a hook."""
        return f"{self.base}/var/log/slurm_colloc/hooks.log"

    @property
    def state_path(self) -> str:
        """What outlasts a reboot."""
        return f"{self.base}/var/lib/slurm_colloc"

    @property
    def totals_path(self) -> str:
        """What `csub admin metrics` has added up so far."""
        return f"{self.state_path}/hook_totals.json"

    @property
    def unit_path(self) -> str:
        """The systemd unit that tidies up after a reboot."""
        return f"{self.base}/etc/systemd/system/slurm_colloc-recover.service"

    @property
    def wants_path(self) -> str:
        """The link that enables it, as `systemctl enable` makes it."""
        directory = f"{self.base}/etc/systemd/system/multi-user.target.wants"
        return f"{directory}/slurm_colloc-recover.service"

    @property
    def logrotate_path(self) -> str:
        """How the log is rotated."""
        return f"{self.base}/etc/logrotate.d/slurm_colloc"

    def here(self, path: str) -> str:
        """Where this machine has a path of the node."""
        return f"{self.root}{path}"

    def check(self) -> Places:
        """Refuse paths that a shell or slurm.conf would read as something else.

        Raises:
            UsageProblem: One of them is relative, or holds other characters.
        """
        for name in ("base", "root", "prefix", "hooks", "driver"):
            value = getattr(self, name)
            if value and (not _PLAIN.fullmatch(value) or ".." in value.split("/")):
                raise UsageProblem(
                    f"the path {value!r} cannot be used here",
                    hint="name an absolute path of letters, digits and . _ + @ - without ..",
                )
        return self


def find_places(
    environ: Mapping[str, str], *, root: str = "", prefix: str = "", hooks: str = ""
) -> Places:
    """The places that an environment and options lead to.

    Another driver is taken over from the environment only where the whole installation is a trial:
    no user's environment names one that root's hooks load.

    Raises:
        UsageProblem: A path cannot be used.
    """
    base = _trim(environ.get(BASE_VARIABLE, ""))
    return Places(
        base=base,
        root=_trim(root),
        prefix=_trim(prefix),
        hooks=_trim(hooks),
        driver=environ.get(DRIVER_VARIABLE, "") if base else "",
    ).check()


def _trim(path: str) -> str:
    return re.sub("/+", "/", path).rstrip("/")


# ---- Which lines slurm.conf needs for the hooks, from what `scontrol show config` says; pure -----

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
    return _build_plan(config, changes, problems, hooks, notes)


def _build_plan(
    config: Mapping[str, str],
    changes: Sequence[LineChange],
    problems: Sequence[str],
    hooks: Sequence[HookPlan] = (),
    notes: Sequence[str] = (),
) -> ControllerPlan:
    return ControllerPlan(
        slurm_conf=config.get("SLURM_CONF", ""),
        version=config.get("SLURM_VERSION", ""),
        is_configless=is_configless(config),
        hooks=tuple(hooks),
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
    changes, problems = [], []
    for kind in KINDS:
        values = read_values(config, kind.capitalize())
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
    return _build_plan(config, changes, problems)


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


# ---- Changing a slurm.conf, and taking the change back; the text is pure, one function writes ----

BEGIN = "# slurm_colloc begin:"
END = "# slurm_colloc end"
_WAS = "#was "
_SECOND_SETTING = re.compile(r"\s\w+\s*=")
# Where slurmd and sackd keep what the controller sent them.
_CACHED = re.compile(r"^/run/slurm/conf/|/conf-cache/")


def render_lines(changes: Sequence[LineChange]) -> list[str]:
    """The lines that a slurm.conf needs, each with its reason above it."""
    lines = []
    for change in changes:
        lines.append(f"# {change.reason}")
        lines += [f"{change.name}={value}" for value in change.after]
        if not change.after:
            lines.append(f"# (no {change.name})")
    return lines


def change_text(text: str, changes: Sequence[LineChange]) -> str:
    """A slurm.conf with these changes; what they replace stays as comments.

    Raises:
        UsageProblem: A line to replace is not as Slurm has it, or holds more than one setting.
    """
    lines = text.splitlines()
    for change in changes:
        found = _find_lines(lines, change)
        block = [
            f"{BEGIN} {change.reason}",
            *(f"{_WAS}{lines[number]}" for number in found),
            *(f"{change.name}={value}" for value in change.after),
            END,
        ]
        if not found:
            lines += block
            continue
        first = found[0]
        rest = [line for number, line in enumerate(lines) if number > first and number not in found]
        lines = [*lines[:first], *block, *rest]
    return "\n".join(lines) + "\n"


def find_missing(text: str, changes: Sequence[LineChange]) -> list[LineChange]:
    """The changes that a slurm.conf does not have yet, whether Slurm has read it since or not."""
    lines = text.splitlines()
    return [
        change
        for change in changes
        if [value for _, value in _list_values(lines, change.name)] != list(change.after)
    ]


def restore_text(text: str, names: Sequence[str]) -> str:
    """A slurm.conf as it was before `change_text` changed these settings."""
    kept: list[str] = []
    block: list[str] = []
    wanted = {name.lower() for name in names}
    for line in text.splitlines():
        if line.startswith(BEGIN) or block:
            block.append(line)
            if line == END:
                kept += _restore_block(block, wanted)
                block = []
        else:
            kept.append(line)
    return "\n".join([*kept, *block]) + "\n"


def _restore_block(block: Sequence[str], wanted: set[str]) -> Sequence[str]:
    before = [line.removeprefix(_WAS) for line in block if line.startswith(_WAS)]
    settings = [line for line in block[1:-1] if not line.startswith(_WAS)]
    names = {line.partition("=")[0].strip().lower() for line in [*settings, *before]}
    return before if names and names <= wanted else block


def _list_values(lines: Sequence[str], name: str) -> list[tuple[int, str]]:
    """The lines that hold a setting, by number, with what follows the equals sign."""
    found = []
    for number, line in enumerate(lines):
        setting, separator, value = line.partition("=")
        if separator and setting.strip().lower() == name.lower():
            found.append((number, value.partition("#")[0].strip().strip('"')))
    return found


def _find_lines(lines: Sequence[str], change: LineChange) -> list[int]:
    """The lines that hold a setting now."""
    found = _list_values(lines, change.name)
    for number, value in found:
        if value.endswith("\\") or _SECOND_SETTING.search(value):
            raise UsageProblem(
                f"line {number + 1} holds more than {change.name}",
                hint="change it by hand; csub admin install-hooks --controller prints what is "
                "needed",
            )
    values = [value for _, value in found]
    expected = [value.lower() for value in change.before]
    if [value.lower() for value in values] != expected:
        raise UsageProblem(
            f"Slurm runs with {change.name}={','.join(change.before) or '(none)'}, and this file "
            f"has {','.join(values) or 'no such line'}",
            hint="an included file, or scontrol reconfigure was not run since the last change: "
            "change it by hand",
        )
    return [number for number, _ in found]


def read_conf(path: str) -> str:
    """Read a slurm.conf that may be changed.

    Raises:
        UsageProblem: It is a copy that the controller sent, or cannot be read.
    """
    if _CACHED.search(os.path.realpath(path)):
        raise UsageProblem(
            f"{path} is a copy that slurmd got from the controller",
            hint="change slurm.conf on the controller",
        )
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path} is not UTF-8 text: {error}") from error


def write_conf(path: str, text: str, *, now_s: float | None = None) -> str:
    """Put a new slurm.conf in the old one's place at once; the old one stays as a backup.

    Owner and mode stay as they were. Where the path is a link, what it leads to is replaced.

    Args:
        path: The file.
        text: What it is to hold.
        now_s: The time for the backup's name; now where None.

    Returns:
        The backup's path.

    Raises:
        StateError: It cannot be written; the old file is untouched.
    """
    target = os.path.realpath(path)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_s))
    backup = f"{target}.before-slurm_colloc.{stamp}"
    temporary = f"{target}.slurm_colloc.{os.getpid()}"
    with failed_to("change", path):
        status = os.stat(target)
        number = 0
        while os.path.lexists(backup):
            number += 1
            backup = f"{target}.before-slurm_colloc.{stamp}.{number}"
        os.link(target, backup)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(temporary, flags, 0o600)
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, status.st_mode & 0o7777)
                os.fsync(descriptor)
            os.replace(temporary, target)
        except BaseException:
            for leftover in (temporary, backup):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
            raise
    return backup


# ---- Whether a node's hooks may go: nothing in Slurm may still name them; mostly pure ------------

_SETTING = re.compile(r"^\s*(prolog|epilog)\s*=\s*(.*)$", re.IGNORECASE)


def find_obstacles(
    record: Mapping[str, Any], values: Mapping[str, Sequence[str]], places: Places
) -> list[str]:
    """Say why hooks cannot be removed: without them, Slurm would find no script and drain nodes.

    Args:
        record: What was installed.
        values: What Prolog and Epilog are in Slurm, by kind of hook.
        places: Where things lie.
    """
    obstacles = []
    for kind in KINDS:
        path = record.get("hooks", {}).get(kind)
        if path is None:
            continue
        for value in values.get(kind, ()):
            setting = f"{kind.capitalize()}={value}"
            if not is_glob(value):
                if os.path.normpath(value) == path:
                    obstacles.append(f"slurm.conf has {setting}, the script itself")
            elif fnmatch.fnmatchcase(path, value):
                others = find_others(places.here(value), places, record)
                if not others:
                    obstacles.append(f"slurm.conf has {setting}, which would match nothing")
    return obstacles


def find_callers(
    record: Mapping[str, Any], values: Mapping[str, Sequence[str]], places: Places
) -> dict[str, str]:
    """The value of Slurm's setting that leads to each hook, without kinds that it never calls."""
    called: dict[str, str] = {}
    for kind in KINDS:
        path = record.get("hooks", {}).get(kind, "")
        for value in values.get(kind, ()):
            if os.path.normpath(value) == path or path in glob.glob(places.here(value)):
                called[kind] = value
    return called


def find_others(pattern: str, places: Places, record: Mapping[str, Any]) -> list[str]:
    """What a pattern matches on this machine apart from what was installed."""
    ours = {places.here(path) for path in [*record["files"], *record["links"]]}
    return sorted(path for path in glob.glob(pattern) if path not in ours)


def read_conf_values(text: str) -> dict[str, tuple[str, ...]]:
    """Prolog and Epilog as a slurm.conf has them."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(KINDS, ())
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match:
            value = match[2].partition("#")[0].strip().strip('"')
            if value and value != "(null)":
                found[match[1].lower()] += (value,)
    return found


def read_config_values(config: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Prolog and Epilog as `scontrol show config` has them."""
    return {kind: read_values(config, kind.capitalize()) for kind in KINDS}


def list_jobs_with_state(run: str) -> list[str]:
    """Jobs that something is prepared for on this machine.

    Raises:
        OSError: The directory cannot be read.
    """
    try:
        names = os.listdir(f"{run}/jobs")
    except FileNotFoundError:
        return []
    jobs = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return sorted((job for job in jobs if job.isdigit()), key=int)
