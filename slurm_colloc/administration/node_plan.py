"""Which files a node needs; nothing is written here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.administration.hook_text import build_constants, render_hook, replace_paths
from slurm_colloc.administration.places import Places
from slurm_colloc.administration.slurm_lines import HookPlan
from slurm_colloc.errors import NodeError
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
