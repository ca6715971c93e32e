"""`site_options.json`: which options the site's plug-ins add to sbatch, as it told them last."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import make_directory, read_json, write_json

KEPT_S = 24 * 3600.0


def describe_installation(command: str, environ: Mapping[str, str]) -> str:
    """What the answer depends on: the program, and the list of plug-ins beside slurm.conf.

    Args:
        command: The path of sbatch.
        environ: The environment; SLURM_CONF names the configuration.
    """
    conf = environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    parts = []
    for path in (command, conf, os.path.join(os.path.dirname(conf), "plugstack.conf")):
        try:
            found = os.stat(path)
            parts.append(f"{path} {found.st_mtime_ns} {found.st_size}")
        except OSError:
            parts.append(f"{path} -")
    return "; ".join(parts)


def read_kept_options(root: Path, installation: str) -> list[tuple[str, str]]:
    """Names and arguments; empty where nothing was kept, or it is old, damaged or of another one.

    Args:
        root: The state directory.
        installation: From `describe_installation`.
    """
    try:
        value = read_json(root / "site_options.json")
    except StateError:
        return []
    if value is None or value.get("installation") != installation:
        return []
    with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
        if 0 <= time.time() - float(value["made_at"]) <= KEPT_S:
            return [(str(name), str(argument)) for name, argument in value["options"]]
    return []


def keep_options(root: Path, installation: str, options: Sequence[tuple[str, str]]) -> None:
    """Keep what sbatch told; where that cannot be, it is asked again."""
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        write_json(
            root / "site_options.json",
            {
                "installation": installation,
                "made_at": time.time(),
                "options": [list(pair) for pair in options],
            },
        )
