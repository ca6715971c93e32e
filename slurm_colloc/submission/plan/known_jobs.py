"""What earlier runs and their user tell of the jobs of a call, before it is planned.

Also: finding the usage profile of a job: its own runs', its family's, or one that its user names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, fields, replace
from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.plan import KnownBy, UsageProfile
from slurm_colloc.model.usage_profile import (
    Calibration,
    ProfileRecord,
    choose_peak_source,
    choose_relatives,
    may_be_one_kind,
    rates_agree,
    tells_rate,
)
from slurm_colloc.planning.job_needs import build_load, has_only_rate
from slurm_colloc.settings import Settings
from slurm_colloc.store.calibrations import find_calibration, match_slugs
from slurm_colloc.store.profiles import (
    ProfileNames,
    compute_family,
    compute_kind,
    compute_signature,
    find_culprit,
    has_culprits,
    list_profiles,
    read_family,
    read_named,
    slug_gpu_model,
)
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate

# ----
# Finding the usage profile of a job: its own runs', its family's, or one that its user names.

STALE_S = 90 * 86400.0
"""A usage profile that is older is still used, and named: driver, data or libraries may differ."""

LEAST_DIGITS = 4
"""So many digits of a signature name a usage profile."""


class ProfileSearch:
    """The look-ups of one call; nothing is read twice.

    Args:
        root: The state directory.

    Attributes:
        reasons: What the user should know of what was found, a sentence each.
        problems: What is wrong with files that were passed over, a sentence each.
        gpu_memory_mb: Memory of a GPU as the monitor saw it, by GPU model.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names = ProfileNames(root)
        self._models: dict[str | None, str] = {}
        self._families: dict[str, list[ProfileRecord]] = {}
        self._exact: dict[str, list[ProfileRecord]] = {}
        self._like: dict[str, list[ProfileRecord]] = {}
        self._all: list[ProfileRecord] | None = None
        self._merged: dict[tuple[KnownBy, str | None, int, str, bool], UsageProfile | None] = {}
        self._signs: dict[tuple[int, tuple[str, ...], int], tuple[str, str]] = {}
        self.reasons: list[str] = []
        self.problems: list[str] = []
        self.gpu_memory_mb: dict[str, int] = {}

    def choose_models(self, candidates: Sequence[Candidate]) -> None:
        """Settle on which GPU model each GPU type means, by all jobs of the call at once."""
        if len(candidates) < 2:
            return
        found: dict[str | None, dict[int, ProfileRecord]] = {}
        for candidate in candidates:
            if candidate.job.gpus:
                records = (*self._find_exact(candidate), *self._find_family(candidate))
                by_id = found.setdefault(candidate.job.gpu_type, {})
                by_id.update((id(record), record) for record in records)
        for gpu_type, by_id in found.items():
            self._choose_model(gpu_type, list(by_id.values()))

    def find(self, candidate: Candidate) -> UsageProfile | None:
        """What is known of a job; None where nothing is."""
        job = candidate.job
        like = [] if job.profile_like is None else self._find_like(candidate, job.profile_like)
        elsewhere: list[ProfileRecord] = []
        unlike: list[ProfileRecord] = []
        if job.gpus:
            steps: tuple[tuple[KnownBy, Callable[[], list[ProfileRecord]]], ...] = (
                (KnownBy.EXACT, lambda: self._find_exact(candidate)),
                (KnownBy.FAMILY, lambda: self._find_family(candidate)),
                (KnownBy.LIKE, lambda: like),
            )
            for known_by, read in steps:
                records = read()
                model = self._choose_model(job.gpu_type, records)
                here = [r for r in records if slug_gpu_model(r.gpu_model) == model]
                elsewhere = elsewhere or [r for r in records if r not in here]
                # The lists are kept, so that their ids stay theirs.
                kind = self._sign(candidate)[1] if known_by is KnownBy.FAMILY else ""
                key = (known_by, model, id(records), kind, bool(like))
                if key not in self._merged:
                    # A named job comes before relatives whose arguments are others.
                    closest = [r for r in here if r.kind == kind] if kind and like else here
                    self._merged[key] = self._merge(job.name, closest, known_by, kind)
                if (profile := self._merged[key]) is not None:
                    return profile
                unlike = here or unlike
        if job.gpu_memory_mb is not None:
            return UsageProfile(known_by=KnownBy.STATED)
        if unlike:
            kept = _keep_memory(unlike)
            kind = self._sign(candidate)[1]
            rates = [
                record.steps_per_s.mean
                for record in [r for r in unlike if r.kind == kind] or unlike
                if record.steps_per_s is not None
            ]
            if kept is not None and (not rates or may_be_one_kind(rates)):
                # They disagree by no more than hosts do: what a pack has measured still counts.
                kept = replace(kept, family=unlike[0].family)
            return kept
        return self._take_memory(job.name, elsewhere)

    def _find_exact(self, candidate: Candidate) -> list[ProfileRecord]:
        signature = compute_signature(candidate.script, candidate.job)
        if signature not in self._exact:
            self._exact[signature] = self._read(self._names.find_signature(signature))
        return self._exact[signature]

    def _find_family(self, candidate: Candidate) -> list[ProfileRecord]:
        family, _ = self._sign(candidate)
        if family not in self._families:
            records, problems = read_family(self._root, family, self._names)
            self._families[family] = records
            self.problems += problems
        return self._families[family]

    def _sign(self, candidate: Candidate) -> tuple[str, str]:
        """A job's family, and its signature without numbers among its arguments."""
        script, job = candidate.script, candidate.job
        # The tasks of an array share their script and arguments.
        key = (id(script), job.arguments, job.gpus)
        if key not in self._signs:
            self._signs[key] = compute_family(script, job), compute_kind(script, job)
        return self._signs[key]

    def _find_like(self, candidate: Candidate, name: str) -> list[ProfileRecord]:
        if name in self._like:
            return self._like[name]
        if self._all is None:
            self._all, problems = list_profiles(self._root)
            self.problems += problems
        is_prefix = len(name) >= LEAST_DIGITS
        found = [
            record
            for record in self._all
            if record.name == name or (is_prefix and record.signature.startswith(name))
        ]
        if not found:
            what = f"{candidate.name_place('profile-like')}: --profile-like={name!a}"
            if not self._all and self.problems:
                raise UsageProblem(f"{what}: no usage profile can be read: {self.problems[0]}")
            import difflib

            names = sorted({record.name for record in self._all})
            near = difflib.get_close_matches(name, names, n=3)
            raise UsageProblem(
                f"{what}: no usage profile has this name or signature",
                hint=f"did you mean {', '.join(ascii(n) for n in near)}?"
                if near
                else "csub profile list shows those that there are",
            )
        # The newest alone: jobs of one name need not be relatives. They come newest first.
        models = dict.fromkeys(record.gpu_model for record in found)
        self._like[name] = [next(r for r in found if r.gpu_model == model) for model in models]
        return self._like[name]

    def _read(self, names: Sequence[str]) -> list[ProfileRecord]:
        records, problems = read_named(self._root, names)
        self.problems += problems
        return records

    def _choose_model(self, gpu_type: str | None, records: Sequence[ProfileRecord]) -> str | None:
        """The GPU model, as in file names, where jobs that ask for a type will run."""
        if gpu_type in self._models:
            return self._models[gpu_type]
        slugs = sorted({slug_gpu_model(record.gpu_model) for record in records})
        matching = slugs if gpu_type is None else match_slugs(gpu_type, slugs)
        if not matching:
            # The next job may tell.
            return None
        newest = max(
            (record for record in records if slug_gpu_model(record.gpu_model) in matching),
            key=lambda record: (record.updated_at, slug_gpu_model(record.gpu_model)),
        )
        self._models[gpu_type] = slug_gpu_model(newest.gpu_model)
        if len(matching) > 1:
            asked = f"--gres asks for {gpu_type}" if gpu_type else "no GPU type is asked for"
            self.reasons.append(
                f"usage profiles are those of {newest.gpu_model}, where it ran last: {asked}, "
                f"and it was measured on {len(matching)} GPU models"
            )
        return self._models[gpu_type]

    def _merge(
        self, name: str, records: Sequence[ProfileRecord], known_by: KnownBy, kind: str
    ) -> UsageProfile | None:
        for record in records:
            if record.gpu_memory_total_mb:
                self.gpu_memory_mb[record.gpu_model] = int(record.gpu_memory_total_mb)
        if known_by is KnownBy.FAMILY:
            found, records = records, choose_relatives(records, kind)
            if not records and any(map(tells_rate, found)):
                self.reasons.append(
                    f"{name}: the rates alone of its relatives (the same script with other "
                    "arguments) differ by more than 10 %, so only their largest GPU memory is used"
                )
        # Of a job that only ran in company its relatives may tell more.
        if not any(map(tells_rate, records)):
            return None
        newest = max(record.updated_at for record in records)
        days = (time.time() - newest) / 86400
        if days * 86400 > STALE_S:
            self.reasons.append(
                f"{name}: its usage profile is {days:.0f} days old; csub probe measures again"
            )
        merged = merge_relatives(records, known_by)
        if known_by is KnownBy.LIKE:
            # It uses as much; what it calls a step, and how many there are, is its own.
            merged = replace(merged, steps_per_s=None, run_s=None)
        return merged

    def _take_memory(self, name: str, records: Sequence[ProfileRecord]) -> UsageProfile | None:
        """Of what ran on another GPU model only the GPU memory counts, with more room."""
        profile = _keep_memory(records)
        if profile is None:
            return None
        models = sorted({record.gpu_model for record in records})
        self.reasons.append(
            f"{name}: measured on {', '.join(models)} only, of which only the GPU memory is used"
        )
        return replace(profile, gpu_model="")


def _keep_memory(records: Sequence[ProfileRecord]) -> UsageProfile | None:
    """No more than the largest GPU memory of several; None where none is known."""
    peaks = [r.gpu_memory_peak_mb for r in records if r.gpu_memory_peak_mb]
    if not peaks:
        return None
    usual = [r.gpu_memory_usual_mb for r in records if r.gpu_memory_usual_mb]
    return UsageProfile(
        gpu_model=records[0].gpu_model,
        gpu_memory_peak_mb=round(max(peaks)),
        gpu_memory_usual_mb=round(max(usual)) if len(usual) == len(peaks) else None,
        gpu_memory_by=choose_peak_source((r.gpu_memory_peak_mb, r.gpu_memory_by) for r in records),
        known_by=KnownBy.UNKNOWN,
    )


def merge_relatives(records: Sequence[ProfileRecord], known_by: KnownBy) -> UsageProfile:
    """One profile of several records on one GPU model: means of what is a mean, largest peaks.

    How long a run takes is known only where all of them took the same number of steps.
    """
    profiles = [record.for_planning(known_by) for record in records]
    if len(profiles) == 1:
        return profiles[0]
    values: dict[str, float | int | None] = {}
    for field in fields(UsageProfile):
        known = [
            value
            for profile in profiles
            if isinstance(value := getattr(profile, field.name), int | float)
        ]
        if field.name.endswith(("_peak_mb", "_usual_mb")):
            values[field.name] = max(known, default=None)
        elif known and field.name != "run_s":
            values[field.name] = sum(known) / len(known)
    runs = [profile.run_s for profile in profiles if profile.run_s is not None]
    if runs and rates_agree(runs):
        values["run_s"] = sum(runs) / len(runs)
    by = choose_peak_source((p.gpu_memory_peak_mb, p.gpu_memory_by) for p in profiles)
    merged = {"run_s": None, "gpu_memory_by": by, **values}
    return replace(profiles[0], **merged)  # type: ignore[arg-type]


# ---- What earlier runs and their user tell of the jobs of a call, before it is planned -----------


@dataclass(frozen=True)
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
        return replace(self, profiles=chosen)

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
        return replace(
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
    from slurm_colloc.store.curves import read_curves

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
    return replace(call, candidates=candidates), tuple(sentences)


def _bar(candidate: Candidate, root: Path) -> Candidate:
    job = candidate.job
    if job.alone_because:
        return candidate
    record = find_culprit(root, compute_signature(candidate.script, job))
    if record is None:
        return candidate
    what, until = "its fault on the GPU ended all clients of MPS", "it has succeeded alone"
    if record.ended_daemon:
        what, until = "it put its own MPS daemon in place of its neighbours'", "its script changes"
    reason = f"{what} when it ran as {record.member}; it shares again once {until}"
    barred = replace(job, alone_because=reason, needs_wall=True)
    return replace(candidate, job=barred)
