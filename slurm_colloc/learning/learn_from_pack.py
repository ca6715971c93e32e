"""The one way in: a pack that has run leaves its summary, usage profiles and feedback."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.learning.observations import build_completion, build_observations
from slurm_colloc.learning.pack_feedback import build_feedback
from slurm_colloc.report.summary.member_figures import compute_figures
from slurm_colloc.report.summary.pack_run import read_run
from slurm_colloc.report.summary.pack_summary import write_summary
from slurm_colloc.store.calibrations import find_calibration
from slurm_colloc.store.learned.profile_updates import (
    add_completions,
    add_feedback,
    add_observations,
)


def learn_from_pack(pack: Path, calibrations: Path | None = None) -> list[str]:
    """Write a pack's summary, then update the usage profiles of its jobs from the same reading.

    The summary comes first: the profiles that it compares with are those of earlier runs.

    Args:
        pack: The pack's directory.
        calibrations: The site's folder of calibrations; None for none.

    Returns:
        What usage profiles could not take, a sentence each.

    Raises:
        NotFound: There is no such pack.
        StateError: Something cannot be read or written.
    """
    state = pack.parent.parent
    run = read_run(pack, state)
    figures = compute_figures(run)
    write_summary(run, figures)
    problems = []
    if observations := [seen for member in run.members for seen in build_observations(run, member)]:
        problems += add_observations(state, observations)
    # Only now has a run that was alone a usage profile.
    found = (build_completion(run, entry.member, entry.steps) for entry in figures)
    if completions := [completion for completion in found if completion is not None]:
        problems += add_completions(state, completions)
    feedback = build_feedback(
        run, figures, lambda gpu: find_calibration(gpu, state, calibrations).calibration
    )
    if feedback is not None:
        problems += add_feedback(state, feedback)
    return problems
