"""What a member sees in its environment; pure functions.

A member is to see what sbatch would have given it alone. The pack's batch script was started by
sbatch with a small known environment, so whatever else it finds there was added by Slurm or by
the site (prolog, plugins), and belongs to every member too. The SLURM_* values that speak of the
pack's size are replaced by the member's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_colloc.model.job import Job, build_parameter_variables
from slurm_colloc.model.job_values import describe_set, exports_all, speaks_of_a_member
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.planning.hard_limits import format_cpu_mask

STEP_SCRUB = (
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_EXPORT_ENV",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_EXACT",
)
"""What srun reads from the environment and different releases read differently (22.05: none of
CPUS_PER_TASK; 23.11 on: it implies --exact, and --exact gives all members the same cores)."""

JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID")
"""Both have the id of the job; Slurm's own commands go by the former."""

_HOST_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
_OF_SLURM = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "ENVIRONMENT",
        "GPU_DEVICE_ORDINAL",
        "HOSTNAME",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
"""What slurmd sets besides SLURM*, whatever the user's environment says."""

_OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})

# Set by Slurm for the pack's own request; a member has them only if the user asked for them.
_OF_THE_REQUEST = frozenset(
    {
        *STEP_SCRUB,
        "SLURM_NTASKS",
        "SLURM_OPEN_MODE",
        "SLURM_NPROCS",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_COUNT",
        "SLURM_ARRAY_TASK_MAX",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_STEP",
        "SLURM_RESTART_COUNT",
        "SLURM_TASK_PID",
    }
)


@dataclass(frozen=True)
class MemberContext:
    """Where a member runs and how it is named there.

    Attributes:
        array_id: The id of its submission, which is that of its array.
        job_id: Its SLURM_JOB_ID: a number of its own, or what Slurm has set.
        member: Its name, `4711/3`.
        pack: Path of the pack's directory.
        run: Path prefix of the files of its present start.
        shims: Directory of Slurm's commands as this member sees them; empty where the real ones
            are right.
        cpus: CPU numbers it is bound to; empty for no binding.
        starts: How often it was started before.
        tmpdir: Its own directory for temporary files; empty where it has none of its own.
        port: Its own port; None where it has none of its own.
        shared: It shares the GPU; otherwise it is the only member and sees what Slurm set.
        started_at: When it starts, in seconds since the epoch.
    """

    array_id: str
    job_id: str
    member: str
    pack: str
    run: str
    shims: str
    cpus: tuple[int, ...]
    starts: int
    tmpdir: str
    port: int | None
    shared: bool
    started_at: int = 0


def compute_added_by_slurm(batch: Mapping[str, str], sent: Mapping[str, str]) -> dict[str, str]:
    """What Slurm and the site added to the environment that sbatch was given."""
    return {
        name: value
        for name, value in batch.items()
        # A site's sbatch may have left what csub told it (slurm.real_command).
        if name not in _OF_THE_SHELL and sent.get(name) != value and not speaks_of_a_member(name)
    }


def compose_environment(
    captured: Mapping[str, str],
    added: Mapping[str, str],
    job: Job,
    plan: MemberPlan,
    place: MemberContext,
) -> dict[str, str]:
    """The environment of a member, without what is its own among neighbours.

    Args:
        captured: The user's, as `--export` left it.
        added: What Slurm and the site added to the batch script's.
        job: The job.
        plan: Its place in the plan.
        place: Where it runs.
    """
    if place.shared:
        environment = _merge(
            captured, {name: text for name, text in added.items() if name not in _OF_THE_REQUEST}
        )
        environment.update(_compute_request_variables(job, plan))
        environment.update(_compute_release_variables(added, job, plan, place))
    else:
        environment = _merge(
            captured,
            {name: text for name, text in added.items() if not name.startswith("SLURM_ARRAY_")},
        )
        environment.pop("SLURM_TASK_PID", None)
    environment |= {name: place.job_id for name in JOB_IDS if name in added}
    if "SLURM_JOB_ID" in added or place.array_id.startswith("L"):
        environment["SLURM_JOB_NAME"] = job.name
    environment["SLURM_COLLOC_MEMBER"] = place.member
    # The same for names of files, in which a slash would be a directory.
    environment["SLURM_COLLOC_NAME"] = place.member.replace("/", "_")
    # The same for each try, so that a later one finds what an earlier one has saved.
    first = job.retry_of or place.member
    environment["SLURM_COLLOC_CHECKPOINT"] = first.replace("/", "_")
    environment.update(build_parameter_variables(job.parameters))
    environment.update(_compute_array_variables(job, place))
    if place.starts and place.shared:
        environment["SLURM_RESTART_COUNT"] = str(place.starts)
    if job.export is not None and not exports_all(job.export) and "SLURM_JOB_ID" in added:
        environment["SLURM_EXPORT_ENV"] = job.export
    return environment


def _merge(captured: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Lay what Slurm and the site added over what was captured, in sbatch's order.

    The login environment (`--export=NONE`, `--get-user-env`) stands below what was captured, and
    so does slurmd's own TMPDIR, which it sets only where there is none.
    """
    is_login = "SLURM_GET_USER_ENV" in added
    merged = dict(captured)
    for name, value in added.items():
        below = (name, value) == ("TMPDIR", "/tmp") or (
            is_login and not name.startswith("SLURM") and name not in _OF_SLURM
        )
        if not below or name not in captured:
            merged[name] = value
    return merged


def _compute_request_variables(job: Job, plan: MemberPlan) -> dict[str, str]:
    """SLURM_* values that describe a request, as sbatch sets them for this job alone."""
    asked = dict(job.shape)
    cpus = str(plan.cpus)
    values = {
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_TASKS_PER_NODE": cpus if "cpus-per-gpu" in asked else "1",
    }
    if "cpus-per-task" in asked:
        values["SLURM_CPUS_PER_TASK"] = cpus
    if "open-mode" in asked:
        values["SLURM_OPEN_MODE"] = "t" if job.truncate_output else "a"
    if "cpus-per-gpu" in asked:
        values["SLURM_CPUS_PER_GPU"] = asked["cpus-per-gpu"]
    if "ntasks" in asked or "ntasks-per-node" in asked:
        values["SLURM_NTASKS"] = values["SLURM_NPROCS"] = "1"
    if "ntasks-per-node" in asked:
        values["SLURM_NTASKS_PER_NODE"] = asked["ntasks-per-node"]
    if "mem" in asked and plan.host_memory_mb is not None:
        values["SLURM_MEM_PER_NODE"] = str(plan.host_memory_mb)
    if "mem-per-cpu" in asked and plan.host_memory_mb is not None:
        values["SLURM_MEM_PER_CPU"] = str(plan.host_memory_mb // plan.cpus)
    if "mem-per-gpu" in asked and plan.host_memory_mb is not None:
        values["SLURM_MEM_PER_GPU"] = str(plan.host_memory_mb)
    if plan.host_memory_mb is not None and not asked.keys() & _HOST_MEMORY:
        # Alone it would have the site's default; here it has its share of the GPU's node.
        values["SLURM_MEM_PER_NODE"] = str(plan.host_memory_mb)
    for option, name in (
        ("gpus", "SLURM_GPUS"),
        ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
        ("gpus-per-task", "SLURM_GPUS_PER_TASK"),
    ):
        if option in asked:
            values[name] = asked[option]
    return values


def _compute_release_variables(
    added: Mapping[str, str], job: Job, plan: MemberPlan, place: MemberContext
) -> dict[str, str]:
    """What only newer releases set (seen on 24.11 and 26.05, not on 22.05), where this one does."""
    values = {}
    if "SLURM_TRES_PER_TASK" in added and "cpus-per-task" in dict(job.shape):
        values["SLURM_TRES_PER_TASK"] = f"cpu={plan.cpus}"
    if "SLURM_GPUS_ON_NODE" in added:
        # Of a pack with several GPUs it may have some.
        values["SLURM_GPUS_ON_NODE"] = str(plan.gpus)
    return values | compute_times(added, plan, place.started_at)


def compute_times(added: Mapping[str, str], plan: MemberPlan, started_at: int) -> dict[str, str]:
    """When a member's time has begun and when it ends, where this release says so.

    Args:
        added: What Slurm and the site added to the batch script's environment.
        plan: Its place in the plan.
        started_at: When it begins, in seconds since the epoch.
    """
    values = {}
    if "SLURM_JOB_START_TIME" in added:
        values["SLURM_JOB_START_TIME"] = str(started_at)
    end = added.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal() and plan.wall_limit_s is not None:
        # The member's own limit, or the pack's where that comes first.
        values["SLURM_JOB_END_TIME"] = str(min(int(end), started_at + plan.wall_limit_s))
    return values


def _compute_array_variables(job: Job, place: MemberContext) -> dict[str, str]:
    task = job.array_task
    if task is None:
        return {}
    return {
        "SLURM_ARRAY_JOB_ID": place.array_id,
        "SLURM_ARRAY_TASK_ID": str(task.task_id),
        "SLURM_ARRAY_TASK_COUNT": str(task.count),
        "SLURM_ARRAY_TASK_MIN": str(task.minimum),
        "SLURM_ARRAY_TASK_MAX": str(task.maximum),
        "SLURM_ARRAY_TASK_STEP": str(task.step),
    }


def compute_own_resources(
    captured: Mapping[str, str],
    added: Mapping[str, str],
    environment: Mapping[str, str],
    plan: MemberPlan,
    place: MemberContext,
) -> dict[str, str]:
    """What neighbours would otherwise fight for, and how a member's shims are found.

    Args:
        captured: The user's environment: what stands there is not set again.
        added: What Slurm and the site added.
        environment: The member's, from `compose_environment`.
        plan: Its place in the plan.
        place: Where it runs.
    """
    own: dict[str, str] = {}
    if place.shared:
        # A TMPDIR that Slurm or the site set is the whole job's.
        known = captured.keys() | (added.keys() - {"TMPDIR"})
        own["OMP_NUM_THREADS"] = str(plan.cpus)
        if place.tmpdir:
            own["TMPDIR"] = place.tmpdir
        if place.port is not None:
            own["MASTER_PORT"] = own["PET_MASTER_PORT"] = str(place.port)
        own = {name: value for name, value in own.items() if name not in known}
    if not place.shims:
        return own
    if place.shared:
        # For an srun that does not come through the shim: should it find the job, it runs alongside
        # the neighbours, on this member's CPUs.
        own["SLURM_OVERLAP"] = "1"
        if place.cpus:
            own["SLURM_CPU_BIND"] = f"mask_cpu:{format_cpu_mask(place.cpus)}"
    own["SLURM_COLLOC_PACK"] = place.pack
    own["SLURM_COLLOC_START"] = place.run
    path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    own["PATH"] = f"{place.shims}:{path}"
    return own


def describe_own(
    environment: Mapping[str, str], final: Mapping[str, str], job: Job, place: MemberContext
) -> str:
    """What jobs that the member submits are not to see; the value of SLURM_COLLOC_SET.

    Args:
        environment: The member's, from `compose_environment`.
        final: With all that was added to it.
        job: The job.
        place: Where it runs.
    """
    before = dict(environment)
    if place.shared and not dict(job.shape).keys() & _HOST_MEMORY:
        # Its share, for which it did not ask.
        before.pop("SLURM_MEM_PER_NODE", None)
    return describe_set(before, final)


def build_step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of an srun that starts a step alongside others."""
    return {name: value for name, value in environment.items() if name not in STEP_SCRUB}


def parse_pairs(block: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decode an environment so that every byte survives."""
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in block
    }
