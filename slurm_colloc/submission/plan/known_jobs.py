"""What earlier runs and their user tell of the jobs of a call, before it is planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.degree.known_curve import KnownCurve
from slurm_colloc.model.plan import KnownBy, UsageProfile
from slurm_colloc.planning.job_load import build_load, has_only_rate
from slurm_colloc.settings import Settings
from slurm_colloc.store.calibrations import find_calibration
from slurm_colloc.store.learned.faults import compute_signature, find_culprit, has_culprits
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.plan.profile_search import ProfileSearch


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """What is known of the jobs of a call.

    Attributes:
        profiles: By index into the jobs; a job of which nothing is known is not in it.
        calibration: How jobs slow each other down on the GPU model where they will run.
        gpu_memory_mb: Memory of one such GPU as the monitor saw it; None where unknown.
        reasons: What of it the user should know, a sentence each; none where nothing is known.
        problems: What is wrong with files that were passed over, a sentence each.
        curves: What earlier packs there have measured of how many run at once best.
    """

    profiles: Mapping[int, UsageProfile]
    calibration: Calibration
    gpu_memory_mb: int | None = None
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    curves: tuple[KnownCurve, ...] = ()

    def is_measured(self, indices: Iterable[int]) -> bool:
        """What each of these jobs takes of a GPU was measured, of itself or a relative.

        Its GPU memory always; its activity, or where the GPU tells none, its rate alone.
        """
        found = [self.profiles.get(index) for index in indices]
        return all(
            profile is not None
            and bool(profile.gpu_memory_peak_mb)
            and (build_load(profile) is not None or has_only_rate(profile))
            for profile in found
        )

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """On which GPU models was measured what is known."""
        found = {p.gpu_model for p in self.profiles.values() if p.gpu_model}
        return tuple(sorted(found))

    def select(self, indices: Sequence[int]) -> Knowledge:
        """What is known of some of the jobs, each by its place among them."""
        chosen = {
            place: self.profiles[index]
            for place, index in enumerate(indices)
            if index in self.profiles
        }
        return dataclasses.replace(self, profiles=chosen)

    def as_of_another_gpu(self, reason: str) -> Knowledge:
        """The same where the GPU may be of another model: the GPU memory alone, with more room.

        Args:
            reason: Why it may be, in a sentence.
        """
        profiles = {
            index: UsageProfile(
                gpu_memory_peak_mb=profile.gpu_memory_peak_mb,
                gpu_memory_by=profile.gpu_memory_by,
            )
            if profile.gpu_model
            else profile
            for index, profile in self.profiles.items()
            if not profile.gpu_model or profile.gpu_memory_peak_mb
        }
        return dataclasses.replace(
            self,
            profiles=profiles,
            gpu_memory_mb=None,
            reasons=(*self.reasons, reason),
            curves=(),
        )


def gather_knowledge(candidates: Sequence[Candidate], settings: Settings) -> Knowledge:
    """Look up what is known of each job: its own runs, its family, its user's words.

    Only the files of these jobs and their families are opened. One that cannot be read counts as
    none, and is named.

    Args:
        candidates: The jobs.
        settings: The settings.

    Raises:
        UsageProblem: `--profile-like` names nothing.
    """
    search = ProfileSearch(settings.state_path)
    profiles = {}
    search.choose_models(candidates)
    for index, candidate in enumerate(candidates):
        profile = search.find(candidate)
        if profile is not None:
            profiles[index] = profile
    measured = [p for p in profiles.values() if p.known_by is not KnownBy.STATED]
    gpu = next((p.gpu_model for p in measured if p.gpu_model), "")
    is_predicted = any(p.sm_activity is not None for p in measured)
    asked = next((c.job.gpu_type for c in candidates if c.job.gpu_type), None)
    found = find_calibration(gpu or asked or "", settings.state_path, settings.calibration_path)
    reasons = list(search.reasons)
    if is_predicted and found.is_borrowed:
        where = gpu or asked or "this GPU"
        reasons.append(
            f"there is no calibration of {where}: slowdowns are predicted by that of "
            f"{found.calibration.gpu_model}, with a wider margin (csub calibrate makes one)"
        )
    curves, unread = _find_curves(profiles.values(), gpu, settings.state_path)
    return Knowledge(
        profiles,
        found.calibration,
        search.gpu_memory_mb.get(gpu),
        tuple(dict.fromkeys(reasons)),
        tuple(dict.fromkeys((*search.problems, *found.problems, *unread))),
        tuple(curves),
    )


def _find_curves(
    profiles: Iterable[UsageProfile], gpu_model: str, root: Path
) -> tuple[Sequence[KnownCurve], Sequence[str]]:
    """What was measured of jobs whose loads are unknown: those of known load are predicted."""
    families = {p.family for p in profiles if p.family and build_load(p) is None}
    if not families:
        return (), ()
    # Only plans that need it wait for it.
    from slurm_colloc.store.learned.curves import read_curves

    return read_curves(root, gpu_model, families)


def bar_culprits(call: Call, root: Path) -> tuple[Call, tuple[str, ...]]:
    """The call with those of its jobs that may share no GPU through MPS now.

    Args:
        call: The call.
        root: The state directory.

    Returns:
        The call, and a sentence for each job that is to run alone.
    """
    if not has_culprits(root):
        return call, ()
    candidates = tuple(_bar(candidate, root) for candidate in call.candidates)
    sentences = dict.fromkeys(
        f"{after.job.script_name} runs alone: {after.job.alone_because}"
        for before, after in zip(call.candidates, candidates, strict=True)
        if after is not before
    )
    return dataclasses.replace(call, candidates=candidates), tuple(sentences)


def _bar(candidate: Candidate, root: Path) -> Candidate:
    job = candidate.job
    if job.alone_because:
        return candidate
    member = find_culprit(root, compute_signature(candidate.script, job))
    if member is None:
        return candidate
    reason = (
        f"its fault on the GPU ended all clients of MPS when it ran as {member}; "
        "it shares again once it has succeeded alone"
    )
    barred = dataclasses.replace(job, alone_because=reason, needs_wall=True)
    return dataclasses.replace(candidate, job=barred)
