"""The plan of a call: what is known of its jobs, what a GPU brings, and what waits in the queue.

Also: a pack of a plan, with the jobs that are its members; whether a call's only job is to ask for
more than it needs, so that others can join it; what of a call is measured: jobs that are unknown,
as they start, and the job of `csub probe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.measurement import PROBE_TIME_S, may_be_measured
from slurm_colloc.model.plan import (
    MPS_CLIENTS_MAX,
    WATCHED_FROM_MB,
    PackPlan,
    Plan,
    Policy,
    SharingMode,
    WaitTable,
    build_wait_table,
)
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_time_limit
from slurm_colloc.planning.gpu_set_packs import (
    choose_gpus_per_pack,
    number_slurm_jobs,
    widen_for_limit,
)
from slurm_colloc.planning.plan_packs import (
    ask,
    describe_groups,
    find_buckets,
    find_first,
    plan,
)
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.accounting import read_history
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.kept_answers import keep, read_kept
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.jobs.job_options import refuse_shared_files
from slurm_colloc.submission.plan.known_jobs import Knowledge
from slurm_colloc.submission.plan.split_call import Part, divide_call
from slurm_colloc.submission.plan.target_nodes import Destinations, describe_asked_type

# ---- A pack of a plan, with the jobs that are its members ----------------------------------------


@dataclass(frozen=True)
class PlannedPack:
    """A pack as it is submitted.

    Attributes:
        plan: Its plan.
        candidates: Its members' jobs with what travels alongside them, in the order of the plan's
            members.
    """

    plan: PackPlan
    candidates: tuple[Candidate, ...]


def add_candidates(
    packs: Iterable[PackPlan], candidates: Sequence[Candidate]
) -> tuple[PlannedPack, ...]:
    """Packs with their members' jobs.

    Args:
        packs: The packs, whose members are counted among these candidates.
        candidates: The jobs that were planned.
    """
    return tuple(
        PlannedPack(pack, tuple(candidates[member.job_index] for member in pack.members))
        for pack in packs
    )


# ----
# The plan of a call: what is known of its jobs, what a GPU brings, and what waits in the queue.

_CHOSEN_AMONG_MOST = 100
"""For more jobs no second plan is made: it would take as long as the first."""


@dataclass(frozen=True)
class PlannedPart:
    """A part of a call, and its plan.

    Attributes:
        part: The part.
        plan: Its plan, whose members are counted among the jobs of the part.
        policy: How far sharing may go in it.
        waits: How long requests wait in its partition; None where that was not asked.
    """

    part: Part
    plan: Plan
    policy: Policy
    waits: WaitTable | None = None


@dataclass(frozen=True)
class CallPlan:
    """The plan of a call, and what it was made with.

    Attributes:
        plan: The plan, whose members are counted among the jobs of the call.
        packs: Its packs, each with its members' jobs.
        jobs: The jobs, in the user's order.
        policy: How far sharing may go.
        parts: The parts of the call, in order of their first jobs.
    """

    plan: Plan
    packs: tuple[PlannedPack, ...]
    jobs: tuple[Job, ...]
    policy: Policy
    parts: tuple[PlannedPart, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with files that were passed over, a sentence each."""
        return _gather(planned.part.knowledge.problems for planned in self.parts)

    def find_part(self, pack: PackPlan) -> PlannedPart:
        """The part to which a pack of the plan belongs."""
        if len(self.parts) == 1:
            return self.parts[0]
        first = pack.members[0].job_index
        return next(planned for planned in self.parts if first in planned.part.indices)


def plan_call(
    call: Call,
    policy: Policy,
    settings: Settings,
    slurm: SlurmAccess | None,
    *,
    looks_at_queue: bool = False,
) -> CallPlan:
    """Plan a call; asks Slurm about its nodes, and how long jobs wait, only if something may share.

    Args:
        call: The call.
        policy: How far sharing may go.
        settings: The settings.
        slurm: Slurm; None where packs run without it.
        looks_at_queue: Also ask how long jobs wait where that changes nothing.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        NoPackPossible: A job asks for more GPU memory than the GPU has.
        UsageProblem: Two members would write one file, or an option has a wrong value.
    """
    parts = divide_call(
        call.candidates,
        settings,
        Destinations(settings, slurm),
        keeps_whole=call.array is not None and call.array.limit is not None,
        gpus_asked=policy.gpus_asked,
    )
    planned = tuple(
        _plan_part(part, policy, settings, slurm, looks_at_queue=looks_at_queue) for part in parts
    )
    chosen = _merge(planned, policy)
    packs = add_candidates(chosen.packs, call.candidates)
    refuse_shared_files(
        [
            candidate.job
            for pack in packs
            if pack.plan.request is not None and (slurm is not None or len(pack.candidates) > 1)
            for candidate in pack.candidates
        ]
    )
    jobs = tuple(candidate.job for candidate in call.candidates)
    return CallPlan(chosen, packs, jobs, policy, planned)


def _plan_part(
    part: Part,
    policy: Policy,
    settings: Settings,
    slurm: SlurmAccess | None,
    *,
    looks_at_queue: bool,
) -> PlannedPart:
    choice = choose_gpus_per_pack(part.jobs, part.capacity, policy)
    policy = replace(policy, gpus_per_pack=choice.gpus)
    chosen = _plan(part, policy)
    is_open = policy.gpus_asked == "auto" and policy.mode is not SharingMode.MIG
    if is_open and not policy.has_gpu_sets:
        wider = widen_for_limit(chosen, part.capacity)
        if wider is not None:
            choice, policy = wider, replace(policy, gpus_per_pack=wider.gpus)
            chosen = _plan(part, policy)
    if choice.reason and any(pack.request is not None for pack in chosen.packs):
        chosen = replace(chosen, reasons=(*chosen.reasons, choice.reason))
    waits = None
    smaller = _choose_smaller(chosen, policy) if slurm is not None else None
    if slurm is not None and (smaller is not None or looks_at_queue):
        waits = look_up_waits(dict(part.jobs[0].group).get("partition"), settings.state_path)
        if smaller is not None and waits.cells:
            from slurm_colloc.planning.pack_pricing import choose_by_queue

            other = _plan(part, smaller)
            chosen, reason = choose_by_queue((chosen, other), waits)
            if reason:
                policy = smaller
                chosen = replace(chosen, reasons=(*chosen.reasons, reason))
    return PlannedPart(part, chosen, policy, waits)


def _plan(part: Part, policy: Policy) -> Plan:
    knowledge = part.knowledge
    chosen = plan(
        part.jobs,
        knowledge.profiles,
        part.capacity,
        policy,
        knowledge.calibration,
        curves=knowledge.curves,
    )
    packs = (_complete_lone(pack, knowledge) for pack in chosen.packs)
    if part.asks_for is not None:
        packs = (
            _settle_asked_type(
                pack,
                part.asks_for,
                in_array=part.jobs[pack.members[0].job_index].array_task is not None,
            )
            for pack in packs
        )
    return replace(chosen, packs=tuple(packs))


def _settle_asked_type(pack: PackPlan, gpu_type: str, *, in_array: bool) -> PackPlan:
    """A pack of several asks for the GPUs of its profiles, and says so; a job alone for any.

    A task alone asks as the packs of its array do, so that the array stays one Slurm job.
    """
    if pack.request is None:
        return pack
    if len(pack.members) == 1 and pack.slurm_job is None and not in_array:
        return replace(pack, request=replace(pack.request, gpu_type=None))
    return replace(pack, reasons=(*pack.reasons, describe_asked_type(gpu_type)))


def _merge(parts: Sequence[PlannedPart], policy: Policy) -> Plan:
    """The plan of a call, of those of its parts; packs are in order of their first job."""
    packs = number_slurm_jobs(_list_packs(planned) for planned in parts)
    limits = [p.plan.packs_at_once for p in parts if p.plan.packs_at_once is not None]
    groups = [
        len(find_buckets(ask(planned.part.jobs, {}, planned.part.capacity, policy)))
        for planned in parts
    ]
    # Said once, of the whole call.
    of_parts = set(map(describe_groups, groups))
    reasons = [r for r in _gather(planned.plan.reasons for planned in parts) if r not in of_parts]
    if sum(groups) > 1:
        reasons.append(describe_groups(sum(groups)))
    reasons += _gather((*p.part.reasons, *p.part.knowledge.reasons) for p in parts)
    reasons += (f"ignored: {p}" for p in _gather(p.part.knowledge.problems for p in parts))
    return Plan(tuple(sorted(packs, key=find_first)), min(limits, default=None), tuple(reasons))


def _list_packs(planned: PlannedPart) -> Sequence[PackPlan]:
    """The packs of a part, with their members counted among all jobs of the call."""
    indices = planned.part.indices
    if indices == tuple(range(len(indices))):
        return planned.plan.packs
    return [_renumber(pack, indices) for pack in planned.plan.packs]


def _renumber(pack: PackPlan, indices: Sequence[int]) -> PackPlan:
    members = (replace(member, job_index=indices[member.job_index]) for member in pack.members)
    return replace(pack, members=tuple(members))


def _gather(texts: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    """Each text once, in order."""
    return tuple(dict.fromkeys(text for several in texts for text in several))


def _choose_smaller(chosen: Plan, policy: Policy) -> Policy | None:
    """The policy for packs half as large, where a shorter time limit may be worth them.

    None where nothing is predicted of the plan, or the user has said how it is to be.
    """
    largest = max((pack.degree for pack in chosen.packs), default=1)
    jobs = sum(len(pack.members) for pack in chosen.packs)
    if policy.degree_is_asked or policy.pack_size is not None:
        return None
    if policy.has_gpu_sets:
        return None
    if largest < 2 or jobs > _CHOSEN_AMONG_MOST:
        return None
    if any(pack.predicted_finish_s is None for pack in chosen.packs):
        return None
    return replace(policy, degree_max=-(-largest // 2), is_small_for_queue=True)


def _complete_lone(pack: PackPlan, knowledge: Knowledge) -> PackPlan:
    """A job alone with what is known of it: its rate, for those that join it, and its end."""
    if len(pack.members) > 1:
        return pack
    (member,) = pack.members
    profile = knowledge.profiles.get(member.job_index)
    if profile is None:
        return pack
    if member.solo_steps_per_s is None:
        member = replace(member, solo_steps_per_s=profile.steps_per_s)
    return replace(
        pack,
        members=(member,),
        predicted_finish_s=pack.predicted_finish_s or profile.run_s,
    )


def look_up_waits(partition: str | None, root: Path) -> WaitTable:
    """How long requests wait in a partition, as far as Slurm's accounting tells.

    Args:
        partition: The partition; None for the default one, of which all partitions tell.
        root: The state directory, which keeps the answer.
    """
    name = f"of-{partition or ''}"
    kept = read_kept(root, name, partition, WaitTable)
    if kept is not None:
        return kept
    jobs, unknown = read_history(partition)
    table = WaitTable(0, {}, unknown) if unknown else build_wait_table(jobs)
    keep(root, name, partition, table)
    return table


# ---- Whether a call's only job is to ask for more than it needs, so that others can join it ------


@dataclass(frozen=True)
class Opening:
    """How a single job is opened for others.

    Attributes:
        places: How many places it is to have, its own among them; None for as many as one GPU's
            share of a node has room for.
        is_wanted: It was asked for, so that Slurm is not asked what it costs.
    """

    places: int | None = None
    is_wanted: bool = False


def choose_opening(
    call: Call, settings: Settings, *, joins: str, is_single: bool
) -> Opening | None:
    """How a call's job is opened for others; None where it is not.

    Args:
        call: The call.
        settings: The settings.
        joins: Which packs the job may join: `auto`, `pending` or `never`.
        is_single: A job by itself was called for.

    Raises:
        UsageProblem: `--open` has a wrong value, or cannot be.
    """
    given = call.options.given("open")
    if given is not None and given.value == "never":
        return None
    is_single = is_single and len(call.candidates) == 1 and call.array is None
    obstacle = _find_obstacle(call, settings, is_single=is_single)
    if given is not None:
        places = None if given.value is None else _read_places(given.value, given.origin)
        if obstacle:
            raise UsageProblem(f"{given.origin}: --open: {obstacle}", hint="leave --open out")
        return Opening(places, is_wanted=True)
    if obstacle or settings.open == "never" or settings.join == "never":
        return None
    if settings.open == "always":
        return Opening(is_wanted=True)
    return Opening() if joins == "auto" else None


def _read_places(text: str, origin: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= 3
    if is_number and 2 <= int(text) <= MPS_CLIENTS_MAX:
        return int(text)
    raise UsageProblem(
        f"{origin}: --open={escape_controls(cut(text))}: a number of jobs that run at the same "
        f"time is needed, from 2 to {MPS_CLIENTS_MAX}, or never",
        hint=f"sbatch's option is --open-mode={text}" if text in ("append", "truncate") else "",
    )


def _find_obstacle(call: Call, settings: Settings, *, is_single: bool) -> str:
    """Why no job could join it while it runs; empty where one could."""
    if not is_single:
        return "packs of several jobs ask for what they need, only a job by itself is opened"
    if call.options.flag("local"):
        return "without Slurm (--local) there is nothing to ask for"
    if call.candidates[0].job.only_probe:
        return "a job that is probed runs alone"
    if call.options.text("join") == "never":
        return "--join=never keeps other jobs away"
    if settings.caps.join != "auto":
        return f"this site lets no job join a running pack (caps.join = {settings.caps.join})"
    return ""


# ----
# What of a call is measured: jobs that are unknown, as they start, and the job of `csub probe`.

MEASURE_S = 60
"""What a pack of unknown jobs asks for on top, for being measured as it starts."""


def compute_measure_s(candidates: Sequence[Candidate], settings: Settings) -> int:
    """Seconds that a pack of these jobs asks for on top, because it is measured as it starts."""
    return MEASURE_S if has_unknown(candidates, settings) else 0


def may_measure(settings: Settings) -> bool:
    """Whether packs are measured by pausing their members as they run."""
    return settings.pause and settings.monitor


def has_unknown(candidates: Sequence[Candidate], settings: Settings) -> bool:
    """Whether one of the jobs would be measured first: it has no usage profile.

    On which GPU model it will run is not known yet, so a usage profile on any of them counts.
    """
    if not may_measure(settings):
        return False
    from slurm_colloc.store.profiles import ProfileNames, tells_of_family

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
    tells_stalls = call.options.flag("stalls")
    if not job.gpus or (job.gpus > 1 and not tells_stalls):
        asked = f"asks for {job.gpus} GPUs" if job.gpus else "asks for no GPU"
        raise UsageProblem(
            f"csub probe: {job.script_name} {asked}, and usage profiles are for jobs with one",
            hint="--gres=gpu:1",
        )
    obstacle = find_obstacle_to_measuring(call, settings)
    if obstacle:
        raise UsageProblem(f"csub probe would measure nothing: {obstacle}")
    if tells_stalls and not (settings.instrument and job.instrument):
        raise UsageProblem(
            "csub probe --stalls needs what counts steps in the program's Python",
            hint="leave --no-instrument out; the setting instrument must be true",
        )
    if tells_stalls and call.options.flag("json"):
        raise UsageProblem("csub probe --stalls has no --json", hint="leave --json out")
    time_limit_s = min(job.time_limit_s or PROBE_TIME_S, PROBE_TIME_S)
    shape = {name: value for name, value in job.shape if name != "time-min"}
    shape["time"] = format_time_limit(time_limit_s)
    probe = replace(
        job,
        time_limit_s=time_limit_s,
        shape=tuple(shape.items()),
        came_together=False,
        # What is started again has been probed already.
        requeue=False,
        only_probe=True,
        tells_stalls=tells_stalls,
        alone_because="it is only probed",
    )
    candidate = replace(call.candidates[0], job=probe)
    return replace(
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
    if job.host_memory_mb is not None and job.host_memory_mb < WATCHED_FROM_MB:
        asked_mb = job.host_memory_mb
        return (
            f"--mem is {asked_mb} MB, and only packs with {WATCHED_FROM_MB} MB or more are watched"
        )
    if not (settings.instrument and job.instrument) and job.progress_regex is None:
        return "nothing counts its steps (--no-instrument, or instrument = false in the settings)"
    return ""
