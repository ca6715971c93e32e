"""Which jobs would be probed, and a call that does nothing else: `csub probe`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.probing import PROBE_TIME_S, find_obstacle_to_probe
from slurm_colloc.model.quantities import format_time_limit
from slurm_colloc.settings import Settings
from slurm_colloc.submission.collect import Call, Candidate


def has_unknown(candidates: Sequence[Candidate], settings: Settings) -> bool:
    """Whether one of the jobs would be probed: nothing tells its rate alone.

    On which GPU model it will run is not known yet, so a usage profile on any of them counts.
    """
    if not (settings.probe and settings.monitor and settings.state_shared):
        return False
    from slurm_colloc.store.profiles import compute_family, list_known_families

    asked = [c for c in candidates if c.job.gpus == 1 and not find_obstacle_to_probe(c.job)]
    if not asked:
        return False
    known = list_known_families(settings.state_path)
    return any(compute_family(c.script, c.job) not in known for c in asked)


def as_probe(call: Call) -> Call:
    """The call as one that runs its job alone until its rate is known.

    Raises:
        UsageProblem: There is nothing to probe.
    """
    job = call.candidates[0].job
    if call.array is not None:
        raise UsageProblem(
            "csub probe takes no --array", hint="probe one of its tasks; the others are its family"
        )
    if job.gpus != 1:
        asked = f"asks for {job.gpus} GPUs" if job.gpus else "asks for no GPU"
        raise UsageProblem(
            f"csub probe: {job.script_name} {asked}, and a usage profile is of a job on one",
            hint="--gres=gpu:1",
        )
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
