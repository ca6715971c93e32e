"""Which files a node needs; nothing is written here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.administration.node_paths import Places
from slurm_colloc.administration.slurm_lines import HookPlan
from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.resources import DataKind, data_path


@dataclass(frozen=True)
class NodeFile:
    """One file, link or directory of a node.

    Args:
        path: As the node sees it.
        content: What it holds; None for a directory or link.
        mode: Its mode.
        target: What it leads to, for a link.
        is_kept: It is the site's to edit: one that is there is left as it is, also when the hooks
            are removed.
    """

    path: str
    content: str | None
    mode: int
    target: str = ""
    is_kept: bool = False

    @property
    def digest(self) -> str:
        """What tells this content from another."""
        return hashlib.sha256((self.content or "").encode()).hexdigest()


def build_node_files(places: Places, hooks: Sequence[HookPlan]) -> list[NodeFile]:
    """Say what a node needs, in the order in which it is written; reads the package's own files.

    Raises:
        NodeError: A hook has no place yet.
        StateError: slurm_colloc is not whole.
    """
    constants = build_constants(places)
    files = [
        NodeFile(places.etc_path, None, 0o755),
        NodeFile(os.path.dirname(places.run_path), None, 0o755),
        NodeFile(os.path.dirname(places.log_path), None, 0o750),
        NodeFile(
            places.policy_path,
            replace_paths(_read_data("site-config", "node.toml"), places),
            0o644,
            is_kept=True,
        ),
        NodeFile(
            places.logrotate_path,
            replace_paths(_read_data("site-config", "logrotate"), places),
            0o644,
        ),
        NodeFile(
            places.unit_path,
            replace_paths(_read_data("site-config", "slurm_colloc-recover.service"), places),
            0o644,
        ),
        NodeFile(places.wants_path, None, 0o777, target=places.unit_path),
    ]
    # The epilog first: a prolog must never have run where nothing undoes it.
    for hook in sorted(hooks, key=lambda hook: hook.kind):
        if hook.problem:
            raise NodeError(hook.problem)
        directory = NodeFile(os.path.dirname(hook.path), None, 0o755)
        if directory not in files:
            files.append(directory)
        if hook.site_script:
            files.append(NodeFile(hook.site_link, None, 0o777, target=hook.site_script))
        text = render_hook(_read_data("hooks", f"{hook.kind}.sh"), constants)
        files.append(NodeFile(hook.path, text, 0o755))
    return files


def _read_data(kind: DataKind, name: str) -> str:
    return data_path(kind, name).read_text(encoding="utf-8")


_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+@-]*")


def build_constants(places: Places) -> dict[str, str]:
    """What the constant lines of a hook say on this node."""
    return {
        "prefix": places.prefix_path,
        "run": places.run_path,
        "policy": places.policy_path,
        "driver": places.driver,
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
    for name in ("prefix", "run", "policy", "driver"):
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
        usual.state_path: places.state_path,
    }
    pattern = re.compile("|".join(re.escape(path) for path in pairs))
    return pattern.sub(lambda match: pairs[match[0]], text)
