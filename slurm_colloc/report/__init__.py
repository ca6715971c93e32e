"""Reading: what the packs are and were, for people and for programs.

`load_packs` is for notebooks: it gives pandas frames (docs/data.md).
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["PackFrames", "load_packs"]


def __getattr__(name: str) -> Any:
    # csub loads this package at each start, and these with what they need only for data.
    if name in __all__:
        return getattr(importlib.import_module("slurm_colloc.report.pack_frames"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
