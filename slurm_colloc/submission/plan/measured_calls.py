"""What of a call is measured: jobs that are unknown, as they start, and the job of `csub probe`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.degree.probe_window import PROBE_TIME_S, may_be_measured
from slurm_colloc.model.plan import WATCHED_FROM_MB
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.settings import Settings
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate

MEASURE_S = 60
"""What a pack of unknown jobs asks for on top, for being measured as it starts."""


def compute_measure_s(candidates: Sequence[Candidate], settings: Settings) -> int:
    """Seconds that a pack of these jobs asks for on top, because it is measured as it starts."""
    return MEASURE_S if has_unknown(candidates, settings) else 0


def may_measure(settings: Settings) -> bool:
    """Whether packs are measured by pausing their members as they run."""
    return settings.pause and settings.monitor and settings.state_shared


def has_unknown(candidates: Sequence[Candidate], settings: Settings) -> bool:
    """Whether one of the jobs would be measured first: it has no usage profile.

    On which GPU model it will run is not known yet, so a usage profile on any of them counts.
    """
    if not may_measure(settings):
        return False
    from slurm_colloc.store.learned.profile_index import ProfileNames
    from slurm_colloc.store.learned.profiles import tells_of_family

    asked = [
        candidate
        for candidate in candidates
        if candidate.job.gpus
        and not candidate.job.alone_because
        and may_be_measured(candidate.job, instruments=settings.instrument)
    ]
    if not asked:
        return False
    root = settings.state_path
    names = ProfileNames(root)
    # The tasks of an array share their script and arguments.
    kinds = {(id(c.script), c.job.arguments): c for c in asked}
    return not all(tells_of_family(root, c.script, c.job, names) for c in kinds.values())


def as_probe(call: Call, settings: Settings) -> Call:
    """The call as one that runs its job alone until its rate is known.

    Raises:
        UsageProblem: There is nothing to probe, or nothing would be measured.
    """
    job = call.candidates[0].job
    if len(call.candidates) > 1:
        raise UsageProblem(
            "csub probe takes one job",
            hint="--array=N probes task N, and the other tasks are its relatives",
        )
    if job.gpus != 1:
        asked = f"asks for {job.gpus} GPUs" if job.gpus else "asks for no GPU"
        raise UsageProblem(
            f"csub probe: {job.script_name} {asked}, and usage profiles are for jobs with one",
            hint="--gres=gpu:1",
        )
    obstacle = find_obstacle_to_measuring(call, settings)
    if obstacle:
        raise UsageProblem(f"csub probe would measure nothing: {obstacle}")
    time_limit_s = min(job.time_limit_s or PROBE_TIME_S, PROBE_TIME_S)
    shape = {name: value for name, value in job.shape if name != "time-min"}
    shape["time"] = format_time_limit(time_limit_s)
    probe = dataclasses.replace(
        job,
        time_limit_s=time_limit_s,
        shape=tuple(shape.items()),
        came_together=False,
        # What is started again has been probed already.
        requeue=False,
        only_probe=True,
        alone_because="it is only probed",
    )
    candidate = dataclasses.replace(call.candidates[0], job=probe)
    return dataclasses.replace(
        call,
        candidates=(candidate,),
        degree=None,
        pack_size=None,
        shares=(("exclusive", "csub probe"),),
    )


def find_obstacle_to_measuring(call: Call, settings: Settings) -> str:
    """Why nothing would be measured of a call's first job; empty where it would."""
    job = call.candidates[0].job
    if not settings.monitor:
        return "monitor = false in the settings"
    if not settings.state_shared and not call.options.flag("local"):
        return "state_shared = false in the settings, so nothing comes back from the node"
    if job.host_memory_mb is not None and job.host_memory_mb < WATCHED_FROM_MB:
        asked_mb = job.host_memory_mb
        return (
            f"--mem is {asked_mb} MB, and only packs with {WATCHED_FROM_MB} MB or more are watched"
        )
    if not (settings.instrument and job.instrument) and job.progress_regex is None:
        return "nothing counts its steps (--no-instrument, or instrument = false in the settings)"
    return ""
