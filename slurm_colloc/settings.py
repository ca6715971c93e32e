"""What a site and a user set: built-in values, the site's file, the user's file, in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import (
    asdict,
    dataclass,
    field,
    fields,
    is_dataclass,
    replace,
)
from slurm_colloc.model.quantities import parse_gpu_memory_mb, parse_time_limit_s
from slurm_colloc.model.setting_values import RunnerSettings, check_values
from slurm_colloc.settings_files import build_state_path, find_files, parse_toml, read_file

REMOVED: Mapping[str, str] = {
    "planner": "csub alone makes the packs now",
    "state_shared": "set state_dir to a path that login and compute nodes share",
}
"""Settings that csub no longer has, and what to do instead: a file may still have them."""

Warn = Callable[[str], object]
"""Told of each setting in a file that was removed, in a sentence."""


@dataclass(frozen=True)
class Caps:
    """What a site allows at most; read from the site's file alone, users cannot widen it.

    Attributes:
        members_per_pack: Members of a pack, those that joined it included; 0 for no cap.
        pack_time: Time limit of a pack, as for `--time`; empty for no cap.
        join: `auto`, `pending` (no running packs) or `never`.
    """

    members_per_pack: int = 0
    pack_time: str = ""
    join: str = "auto"

    @property
    def pack_time_s(self) -> int | None:
        """The cap on a pack's time limit in seconds; None for no cap."""
        return parse_time_limit_s(self.pack_time) if self.pack_time else None


@dataclass(frozen=True)
class Settings:
    """All settings; a settings.toml has these names at its top level.

    Attributes:
        state_dir: Where packs are kept; must be seen from the compute nodes under this path.
        node_python: The Python that runs packs on the nodes, with slurm_colloc installed.
        templates_dir: Templates here are used before the ones that came with csub.
        degree: Members that share a GPU at the same time.
        pack_size: Members of a pack; those above the degree wait in it. 0: as many as the degree.
        gpus_per_pack: GPUs of a pack: a number, `node` (those of a node) or `auto` (a node's where
            Slurm gives whole nodes, else mostly one).
        slowdown_bound: Accepted slowdown; wall limits are stretched by it.
        share: How members share a GPU: `auto` (MPS where the node has it), `mps`, `timeslice` or
            `exclusive`; with `!` behind it, no other mode instead.
        start_margin_s: Time that a pack asks for on top of its members'.
        kill_wait_s: From SIGTERM to SIGKILL of a member; 0: Slurm's KillWait.
        launcher: `srun` (job steps), `process` (plain processes) or `auto` (steps, and plain
            processes where steps fail).
        gpu_memory: Memory of one GPU by its Slurm type, `any` where the site has one type.
        join: Which packs a single script may join: `auto` (pending and running ones; where a
            program reads the answer, only in the place of all Slurm's commands), `always`,
            `pending` or `never`.
        open: Whether a single job asks for more than it needs, so that others can join it while it
            runs: `auto` (where Slurm starts it as soon and charges no more), `always` or `never`.
        job_id: What SLURM_JOB_ID is in a member: `own`, a number of its own; `pack`, the id of its
            pack's Slurm job; `auto`, the former but where Slurm's own ids are as large.
        accept: Names of findings of `csub check` in spite of which jobs share, or `all`.
        private_tmp: Whether members have a /tmp of their own: `auto` (where job_container/tmpfs
            gives each job one), `always` or `never`.
        own_directories: Directories that the site makes for each job, `/lscratch/%j`, several with
            colons: members have their own by that path; empty for none.
        hooks: Whether packs ask the node's prolog for MPS: `auto` (it is asked, and a pack on a
            node without one starts MPS itself), `always` (packs run on nodes with `hook_feature`
            alone) or `never`.
        mig: The nodes' prologs cut GPUs into MIG instances: `share = "auto"` uses them for jobs
            that MPS does not hold (docs/mig.md).
        mig_mps_inside: Their policy lets MPS run inside an instance: `--share=mig=3g+3g --degree=6`
            puts several members on one.
        hook_feature: The node feature by which Slurm knows nodes with hooks; empty for none.
        slurm_access: How Slurm is asked: `commands`, `pyslurm`, or `auto` (pyslurm where it
            matches the running Slurm, else the commands).
        monitor: Packs are watched: use of the GPU, progress, slowdown.
        instrument: Members count their training steps, by a hook in their Python.
        pause: Members are paused for moments, so that others can be measured without them.
        door: Members that wait for room on the GPU may start, and load their program until they
            would use it.
        avoid_slow: Nodes are left out of which a GPU is slow by the user's own packs
            (docs/planning.md).
        monitor_interval_s: How often the monitor looks, in seconds.
        activity_source: Who tells the activity of SMs, tensor cores and DRAM: `gpm` (NVML, from
            Hopper on), or `dcgm` (dcgmi, where the site runs DCGM's host engine).
        gpu_names: What CUDA_VISIBLE_DEVICES has in members that share by MPS: `index`, `uuid`, or
            `auto` (indexes where the job sees no other GPUs than the member's, else UUIDs).
        goal: What counts when jobs that are known are packed: `throughput` (GPU time),
            `latency` (when jobs end) or `energy`.
        calibration_dir: Where the site's calibrations of GPU models lie; empty for none.
        fleet_spool: Into which packs that have ended report to the site; empty for none.
        caps: What the site allows at most.
    """

    state_dir: str = ""
    node_python: str = ""
    templates_dir: str = ""
    degree: int = 4
    pack_size: int = 0
    gpus_per_pack: str = "auto"
    slowdown_bound: float = 1.5
    share: str = "auto"
    start_margin_s: int = 60
    kill_wait_s: int = 0
    launcher: str = "auto"
    gpu_memory: Mapping[str, str] = field(default_factory=dict)
    join: str = "auto"
    open: str = "auto"
    job_id: str = "auto"
    accept: Sequence[str] = field(default_factory=list)
    private_tmp: str = "auto"
    own_directories: str = ""
    hooks: str = "auto"
    mig: bool = False
    mig_mps_inside: bool = False
    hook_feature: str = ""
    slurm_access: str = "auto"
    monitor: bool = True
    instrument: bool = True
    pause: bool = True
    door: bool = True
    avoid_slow: bool = False
    monitor_interval_s: float = 1.0
    activity_source: str = "gpm"
    gpu_names: str = "auto"
    goal: str = "throughput"
    calibration_dir: str = "/etc/slurm_colloc/calibrations"
    fleet_spool: str = ""
    caps: Caps = Caps()

    def gpu_memory_mb(self, gpu_type: str | None) -> int | None:
        """Memory of one GPU of a type in MB; None where the site does not say."""
        text = self.gpu_memory.get(gpu_type or "any") or self.gpu_memory.get("any")
        return parse_gpu_memory_mb(text) if text else None

    @property
    def state_path(self) -> Path:
        """The state directory."""
        return build_state_path(self.state_dir)

    @property
    def calibration_path(self) -> Path | None:
        """The folder of the site's calibrations; None for none."""
        return Path(os.path.expandvars(self.calibration_dir)) if self.calibration_dir else None

    @property
    def for_runner(self) -> RunnerSettings:
        """Those that a pack's runner goes by; pack.json holds them."""
        names = [field.name for field in fields(RunnerSettings)]
        return RunnerSettings(**{name: getattr(self, name) for name in names})

    @property
    def python(self) -> str:
        """The interpreter that the batch script names."""
        return self.node_python or sys.executable


def load_settings(
    environ: Mapping[str, str] | None = None, warn: Warn = lambda _: None
) -> Settings:
    """Read the site's and the user's settings; the site's caps hold for both.

    Raises:
        UsageProblem: A file cannot be read, or holds an unknown name or a wrong value.
    """
    files = find_files(os.environ if environ is None else environ)
    site: dict[str, Any] = {}
    user: dict[str, Any] = {}
    if files.is_required or os.path.exists(files.site):
        site = read_settings_file(files.site, is_site=True, warn=warn)
    if files.user and os.path.exists(files.user):
        user = read_settings_file(files.user, warn=warn)
    return merge_settings(site, user)


def load_node_settings(
    environ: Mapping[str, str], given: RunnerSettings | None
) -> tuple[Settings, tuple[str, ...]]:
    """The settings on a compute node, where a pack must not fail for what is wrong with them.

    Args:
        environ: The environment.
        given: Those that the pack has of its own; None for none.

    Returns:
        The settings without what cannot be used, and what that is, a sentence each.
    """
    files = find_files(environ)
    problems: list[str] = []
    read: list[dict[str, Any]] = []
    for path, is_site in ((files.site, True), (files.user, False)):
        values: dict[str, Any] = {}
        if path and (os.path.exists(path) or (is_site and files.is_required)):
            try:
                found = parse_toml(path, read_file(path))
            except UsageProblem as problem:
                problems.append(str(problem))
                found = {}
            _drop_removed(path, found, problems.append)
            for name, value in found.items():
                try:
                    _check_settings(path, {name: value}, is_site=is_site)
                    values[name] = value
                except UsageProblem as problem:
                    problems.append(str(problem))
        read.append(values)
    settings = merge_settings(read[0], read[1])
    if given is not None:
        settings = replace(settings, **asdict(given))
    return settings, tuple(problems)


def merge_settings(site: Mapping[str, Any], user: Mapping[str, Any]) -> Settings:
    """The user's values over the site's, within the site's caps; built-in values below both."""
    values = {**site, **user}
    caps = Caps(**site.get("caps", {}))
    values["gpu_memory"] = {**site.get("gpu_memory", {}), **user.get("gpu_memory", {})}
    settings = Settings(**{**values, "caps": caps})
    return replace(settings, **compute_capped(settings))


def compute_capped(settings: Settings) -> dict[str, Any]:
    """The settings that are above a cap of the site, as the cap makes them."""
    capped: dict[str, Any] = {}
    most = settings.caps.members_per_pack
    for name in ("degree", "pack_size"):
        if most and getattr(settings, name) > most:
            capped[name] = most
    reach = {choice: place for place, choice in enumerate(("never", "pending", "auto"))}
    if reach.get(settings.join, reach["auto"]) > reach.get(settings.caps.join, reach["auto"]):
        capped["join"] = settings.caps.join
    return capped


def read_given_environment() -> Mapping[str, str]:
    """os.environ as this process was given it.

    Where no locale is set Python puts LC_CTYPE into its own environment (PEP 538); no job is to
    see that.
    """
    if "LC_CTYPE" in os.environ:
        try:
            with open("/proc/self/environ", "rb") as file:
                given = b"\0" + file.read()
        except OSError:
            return os.environ
        if b"\0LC_CTYPE=" not in given:
            del os.environ["LC_CTYPE"]
    return os.environ


def read_settings_file(
    path: str, *, is_site: bool = False, warn: Warn = lambda _: None
) -> dict[str, Any]:
    """Read one settings file.

    Raises:
        UsageProblem: It cannot be read, or holds an unknown name or a wrong value.
    """
    return parse_settings(path, read_file(path), is_site=is_site, warn=warn)


def parse_settings(
    path: str, data: bytes, *, is_site: bool = False, warn: Warn = lambda _: None
) -> dict[str, Any]:
    """Read what a settings file holds.

    Args:
        path: The file, for messages.
        data: Its content.
        is_site: It is the site's file, which alone may hold caps.
        warn: Told of what was removed and is left out.

    Raises:
        UsageProblem: It is not TOML, or holds an unknown name or a wrong value.
    """
    values = parse_toml(path, data)
    _drop_removed(path, values, warn)
    _check_settings(path, values, is_site=is_site)
    return values


def _drop_removed(path: str, values: dict[str, Any], warn: Warn) -> None:
    for name, instead in REMOVED.items():
        if values.pop(name, None) is not None:
            warn(f"{path}: the setting {name!r} was removed and is ignored: {instead}")


def _check_settings(path: str, values: Mapping[str, Any], *, is_site: bool) -> None:
    if "caps" in values and not is_site:
        raise UsageProblem(
            f"{path}: [caps] has no meaning here",
            hint="caps can be set only in the site's settings",
        )
    defaults = Settings()
    _check_kinds(path, values, defaults, "")
    if isinstance(values.get("caps"), dict):
        _check_kinds(path, values["caps"], defaults.caps, "caps.")
    check_values(path, values)


def _check_kinds(path: str, values: Mapping[str, Any], defaults: Any, prefix: str) -> None:
    """Check names and kinds against the fields of a dataclass."""
    known = [one.name for one in fields(defaults)]
    for name, value in values.items():
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            raise UsageProblem(
                f"{path}: there is no setting {prefix + name!r}",
                hint=f"did you mean {prefix + near[0]!r}?"
                if near
                else f"valid ones are {', '.join(known)}",
            )
        default = getattr(defaults, name)
        if is_dataclass(default):
            default = {}
        expected = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, expected) or (
            isinstance(value, bool) and not isinstance(default, bool)
        ):
            raise UsageProblem(
                f"{path}: {prefix}{name} = {value!r} should be of the kind of {default!r}"
            )
