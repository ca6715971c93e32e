"""Where settings stand, and the one that all others are found by; light, for completion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.errors import UsageProblem

SITE_FILE = "/etc/slurm_colloc/settings.toml"
"""Where an administrator puts the site's settings; SLURM_COLLOC_SETTINGS names another file."""

STATE_VARIABLE = "SLURM_COLLOC_STATE"
"""Where the state is that a member's own commands ask: its environment may lead elsewhere."""


class SettingsFiles(NamedTuple):
    """Where settings are read from.

    Attributes:
        site: The site's file.
        is_required: The site's file was named explicitly and must be there.
        user: The user's own file; empty where there is no home.
    """

    site: str
    is_required: bool
    user: str


def find_files(environ: Mapping[str, str]) -> SettingsFiles:
    """The files that an environment leads to."""
    config = environ.get("XDG_CONFIG_HOME", "")
    home = environ.get("HOME", "")
    return SettingsFiles(
        environ.get("SLURM_COLLOC_SETTINGS", SITE_FILE),
        "SLURM_COLLOC_SETTINGS" in environ,
        f"{config or home + '/.config'}/slurm_colloc/settings.toml" if config or home else "",
    )


def read_file(path: str) -> bytes:
    """What a settings file holds.

    Raises:
        UsageProblem: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageProblem(
            f"cannot read the settings {path}: {os.strerror(error.errno or 0)}"
        ) from error


def parse_toml(path: str, data: bytes) -> dict[str, Any]:
    """The values in a settings file; nothing is checked.

    Args:
        path: The file, for messages.
        data: Its content.

    Raises:
        UsageProblem: It is not TOML.
    """
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not TOML: {error}") from error


def build_state_path(state_dir: str) -> Path:
    """The state directory.

    Args:
        state_dir: As it was set; empty for the usual place.
    """
    if own := os.environ.get(STATE_VARIABLE):
        return Path(own)
    if state_dir:
        return Path(os.path.expandvars(state_dir)).expanduser()
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "slurm_colloc"


def find_state_path(environ: Mapping[str, str]) -> Path:
    """The state directory that the files lead to; of all settings nothing else is looked at.

    Raises:
        UsageProblem: A file cannot be read.
    """
    files = find_files(environ)
    state_dir = ""
    for path in (files.site, files.user):
        if path and os.path.exists(path):
            found = parse_toml(path, read_file(path)).get("state_dir", state_dir)
            state_dir = found if isinstance(found, str) else state_dir
    return build_state_path(state_dir)
