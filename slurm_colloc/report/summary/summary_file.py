"""The summary that a pack's end has left: where it lies, and reading it; light to load."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.report.summary.summary_shape import Summary, fits_summary
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack.sample_files import report_directory

SUMMARY_SCHEMA = 1


def summary_path(pack: Path) -> Path:
    """Where a pack's summary lies."""
    return Path(report_directory(pack)) / "summary.json"


def read_summary(pack: Path) -> Summary | None:
    """The summary that the newest attempt of a pack left; None where there is no final one."""
    try:
        value = read_json(summary_path(pack))
        attempt = read_attempt(pack)
    except StateError:
        return None
    if value is None or value.get("schema") != SUMMARY_SCHEMA or not fits_summary(value):
        return None
    return value if value.get("final") is True and value.get("attempt") == attempt else None
