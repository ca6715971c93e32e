"""What the parts of a runner are given, for tests that put single parts together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.guarded_steps import GuardedSteps, Journal
from slurm_colloc.runtime.members import PackMembers
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State

from ..packs import build_pack


def build_context(path: Path, **changes: Any) -> PackContext:
    """An attempt of a pack in a directory, without Slurm; `changes` are fields of it."""
    journal = Journal(path)
    values: dict[str, Any] = {
        "record": build_pack("s").record,
        "state": State(path.parent.parent, "here"),
        "attempt": 1,
        "allocation": Allocation(
            "4711", "4711", "n", 0, 2, (), (), {"PATH": os.environ.get("PATH", "")}
        ),
        "settings": Settings(),
        "slurm": None,
        "config": {},
        "journal": journal,
        "steps": GuardedSteps(journal),
        "members": PackMembers([]),
    }
    return PackContext(path=path, **{**values, **changes})
