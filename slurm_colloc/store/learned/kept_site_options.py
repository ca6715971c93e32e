"""`site_options.json`: which options the site's plug-ins add to sbatch, as it told them last."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.record_files import read_record

KEPT_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class KeptOptions:
    """What sbatch told.

    Attributes:
        installation: From `describe_installation`.
        made_at: When, in seconds since the epoch.
        options: Names and arguments.
    """

    installation: str
    made_at: float
    options: tuple[tuple[str, str], ...]


def describe_installation(command: str, environ: Mapping[str, str]) -> str:
    """What the answer depends on: the program, and the list of plug-ins next to slurm.conf.

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
        kept = read_record(root / "site_options.json", KeptOptions)
    except StateError:
        return []
    if kept is None or kept.installation != installation:
        return []
    return list(kept.options) if 0 <= time.time() - kept.made_at <= KEPT_S else []


def keep_options(root: Path, installation: str, options: Sequence[tuple[str, str]]) -> None:
    """Keep what sbatch told; where that cannot be, it is asked again."""
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        kept = KeptOptions(installation, time.time(), tuple(options))
        write_json(root / "site_options.json", dataclasses.asdict(kept))
