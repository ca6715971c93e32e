"""Whether a node's hooks may go: nothing in Slurm may still name them; mostly pure."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.administration.node_paths import Places
from slurm_colloc.administration.slurm_lines import KINDS, is_glob, read_values

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
