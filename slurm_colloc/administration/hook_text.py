"""The hook scripts and the node's files as they are installed: constants put in; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_colloc.administration.places import Places
from slurm_colloc.errors import StateError

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+@-]*")


def build_constants(places: Places) -> dict[str, str]:
    """What the constant lines of a hook say on this node."""
    return {
        "prefix": places.prefix_path,
        "run": places.run_path,
        "policy": places.policy_path,
        "simgpu": places.simgpu,
    }


def render_hook(text: str, constants: Mapping[str, str]) -> str:
    """Put constants into a hook script.

    Args:
        text: The script as it comes with slurm_colloc.
        constants: Values by name; each name has exactly one line `name=...` in the script.

    Raises:
        StateError: The script has no such line, or several.
        ValueError: A shell would read a value as something else.
    """
    for name, value in constants.items():
        if not _PLAIN_VALUE.fullmatch(value):
            raise ValueError(f"not a plain path: {value!r}")
        pattern = re.compile(rf"^{name}=.*$", re.MULTILINE)
        if len(pattern.findall(text)) != 1:
            raise StateError(
                f"the hook script has no single line {name}=...",
                hint="install slurm_colloc again",
            )
        text = pattern.sub(f"{name}={value}", text)
    return text


def read_constants(text: str) -> dict[str, str]:
    """The constants of an installed hook; without those that it lacks."""
    found = {}
    for name in ("prefix", "run", "policy", "simgpu"):
        match = re.search(rf"^{name}=(.*)$", text, re.MULTILINE)
        if match:
            found[name] = match[1]
    return found


def replace_paths(text: str, places: Places) -> str:
    """A file of `site-config` with this node's paths instead of the usual ones."""
    usual = Places()
    pairs = {
        usual.prefix_path: places.prefix_path,
        usual.policy_path: places.policy_path,
        usual.run_path: places.run_path,
        usual.log_path: places.log_path,
    }
    pattern = re.compile("|".join(re.escape(path) for path in pairs))
    return pattern.sub(lambda match: pairs[match[0]], text)
