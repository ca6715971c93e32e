"""What is done once a pack has ended: its summary, what is learned, and what others are told."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.cli.session import note
from slurm_colloc.errors import CollocError
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State


def finish_pack(state: State, pack_id: str, settings: Settings) -> list[str]:
    """Write a pack's summary, learn from it, and tell the site.

    Args:
        state: The caller's own state directory.
        pack_id: The pack.
        settings: The settings.

    Returns:
        What usage profiles could not take, a sentence each.

    Raises:
        NotFound: There is no such pack.
        StateError: Something cannot be read or written.
    """
    from slurm_colloc.learning.learn_from_pack import learn_from_pack

    problems = learn_from_pack(state.pack_path(pack_id), settings.calibration_path)
    if settings.fleet_spool:
        try:
            _tell_site(state, pack_id, Path(settings.fleet_spool))
        except CollocError as problem:
            # The user's own figures are there all the same.
            note(f"pack {pack_id} was not reported to the site: {problem}")
    return problems


def _tell_site(state: State, pack_id: str, spool: Path) -> None:
    from slurm_colloc.report.member_survey import survey_packs
    from slurm_colloc.report.summary.stored_summary import find_summary
    from slurm_colloc.report.sums.fleet_report import report_to_site

    for view in survey_packs(state, [pack_id], None):
        summary = find_summary(state, view)
        if summary["final"]:
            report_to_site(spool, summary, view)
