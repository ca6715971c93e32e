"""Packs that travel in their batch script, where login and compute nodes share no path."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import UsageProblem

SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size; the archive must fit with room."""


def build_archive(packs: Path, pack_ids: Sequence[str]) -> str:
    """Pack directories as lines of base64, for a here-document.

    Args:
        packs: The directory that holds them.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for a batch script.
    """
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for pack_id in pack_ids:
            archive.add(packs / pack_id, arcname=f"packs/{pack_id}")
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    if len(text) > SCRIPT_LIMIT_BYTES * 3 // 4:
        raise UsageProblem(
            f"the jobs take {len(text) // 1024} KB, which is too much to travel in a batch script",
            hint="submit fewer at a time, or set state_dir to a path that the nodes share",
        )
    return "\n".join(textwrap.wrap(text, 120))
