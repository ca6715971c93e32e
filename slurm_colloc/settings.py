"""What a site and a user set: built-in values, the site's file, the user's file, in this order."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.quantities import parse_gpu_memory_mb

SITE_FILE = "/etc/slurm_colloc/settings.toml"
"""Where an administrator puts the site's settings; SLURM_COLLOC_SETTINGS names another file."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings; a settings.toml has these names at its top level.

    Attributes:
        state_dir: Where packs are kept; must be seen from the compute nodes under this path.
        state_shared: False where no such path exists: each submission is then carried in its
            batch script, and member states stay on the node.
        node_python: The Python that runs packs on the nodes, with slurm_colloc installed.
        templates_dir: Templates here are used before the ones that came with csub.
        degree: Members that share a GPU at the same time.
        pack_size: Members of a pack; those above the degree wait in it. 0: as many as the degree.
        slowdown_bound: Accepted slowdown; wall limits are stretched by it.
        start_margin_s: Time that a pack asks for on top of its members'.
        kill_wait_s: From SIGTERM to SIGKILL of a member; 0: Slurm's KillWait.
        launcher: `srun` (job steps), `process` (plain processes) or `auto` (steps, and plain
            processes where steps fail).
        gpu_memory: Memory of one GPU by its Slurm type, `any` where the site has one type.
    """

    state_dir: str = ""
    state_shared: bool = True
    node_python: str = ""
    templates_dir: str = ""
    degree: int = 4
    pack_size: int = 0
    slowdown_bound: float = 1.5
    start_margin_s: int = 60
    kill_wait_s: int = 0
    launcher: str = "auto"
    gpu_memory: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def gpu_memory_mb(self, gpu_type: str | None) -> int | None:
        """Memory of one GPU of a type in MB; None where the site does not say."""
        text = self.gpu_memory.get(gpu_type or "any") or self.gpu_memory.get("any")
        return parse_gpu_memory_mb(text) if text else None

    @property
    def state_path(self) -> Path:
        """The state directory."""
        if self.state_dir:
            return Path(os.path.expandvars(self.state_dir)).expanduser()
        base = os.environ.get("XDG_STATE_HOME", "")
        return (Path(base) if base else Path.home() / ".local" / "state") / "slurm_colloc"

    @property
    def python(self) -> str:
        """The interpreter that the batch script names."""
        return self.node_python or sys.executable


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the site's and the user's settings.

    Raises:
        UsageProblem: A file cannot be read, or holds an unknown name or a wrong value.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    site = environ.get("SLURM_COLLOC_SETTINGS", SITE_FILE)
    config = environ.get("XDG_CONFIG_HOME", "")
    home = environ.get("HOME", "")
    user = f"{config or home + '/.config'}/slurm_colloc/settings.toml" if config or home else ""
    for path, required in ((site, "SLURM_COLLOC_SETTINGS" in environ), (user, False)):
        if path and (required or os.path.exists(path)):
            values.update(read_settings_file(path))
    return Settings(**values)


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


def read_settings_file(path: str) -> dict[str, Any]:
    """Read one settings file.

    Raises:
        UsageProblem: It cannot be read, or holds an unknown name or a wrong value.
    """
    import tomllib

    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise UsageProblem(
            f"cannot read the settings {path}: {os.strerror(error.errno or 0)}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not TOML: {error}") from error
    known = {field.name: field for field in dataclasses.fields(Settings)}
    defaults = Settings()
    for name, value in values.items():
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            raise UsageProblem(
                f"{path}: there is no setting {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}",
            )
        default = getattr(defaults, name)
        expected = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, expected) or (
            isinstance(value, bool) and not isinstance(default, bool)
        ):
            raise UsageProblem(f"{path}: {name} = {value!r} should be of the kind of {default!r}")
    check_values(path, values)
    return values


def check_values(path: str, values: Mapping[str, Any]) -> None:
    """Check ranges.

    Raises:
        UsageProblem: A value is out of its range.
    """
    minimum = {
        "degree": 1,
        "pack_size": 0,
        "slowdown_bound": 1,
        "start_margin_s": 0,
        "kill_wait_s": 0,
    }
    for name, least in minimum.items():
        if name in values and values[name] < least:
            raise UsageProblem(f"{path}: {name} = {values[name]} must be at least {least}")
    if values.get("launcher", "auto") not in ("auto", "srun", "process"):
        raise UsageProblem(
            f"{path}: launcher = {values['launcher']!r} must be auto, srun or process"
        )
    for gpu_type, text in values.get("gpu_memory", {}).items():
        try:
            parse_gpu_memory_mb(str(text))
        except ValueError as error:
            raise UsageProblem(f"{path}: gpu_memory.{gpu_type}: {error}") from error
